from neuralmark.files import *  # temporary alias while helpers work
