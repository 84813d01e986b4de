"""All keys against all models: cheap tests first, one bound for everything, nothing lost.

contract    what may be chosen, what a row says
family      the bound for all keys, targets and ways (pure)
planning    what headers tell: which ways, which batches (pure)
targets     files, folders, globs, addresses and lists, one after the other
keyring     keys, their claims and anchors
kin         whether a model is like an anchor at all, before anything is aligned
pooling     one look at many models, or many looks at a large one
screening   which marks may be there
work        what a worker does with a batch
readers     workers of this machine; cluster: workers of a Ray cluster
journal     what is done, kept so that a killed scan goes on
results     rows to files
running     one round; rounds: a scan, and watching
"""
