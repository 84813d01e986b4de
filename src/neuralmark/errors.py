"""Every error a user can meet, each with the exit code the command line gives it.

NeuralMarkError
├── UsageError                     exit code 2: the call cannot be carried out
│   ├── ParameterError             a value out of its range
│   ├── UnknownTensorError         no tensor of that name
│   ├── UnsuitableTensorError      a tensor that cannot carry a mark as it is stored
│   ├── TooFewCarriersError        the tensors are too small for this key
│   ├── InfeasibleError            no weights can carry these bits at this margin
│   ├── ClaimMismatchError         the claim is of another key, or of other parameters
│   ├── AnchorMismatchError        the anchor, or the original, is of another key or claim
│   ├── TriggerMismatchError       triggers that do not fit the model, the key or the claim
│   ├── PassportMismatchError      passports that were made for other layers
│   ├── MissingNormError           no norm that a passport could take the place of
│   ├── LiveModelError             the scheme reads a live model, and something else was given
│   ├── ModelCodeError             code of a network that does not run, or fits another model
│   ├── PassphraseError            no passphrase given, or the two typed differ
│   ├── OutputError                the output cannot or must not be written
│   ├── CheckFailedError           no candidate passed the owner's own check
│   ├── UnknownSchemeError         no watermarking scheme of that name
│   ├── AttackError                an attack that cannot be carried out
│   │   ├── UnknownAttackError     no attack of that name
│   │   ├── NoMarkError            the model does not carry the mark to be attacked
│   │   ├── MissingDataError       the attack needs data, a live model or other checkpoints
│   │   ├── DataMismatchError      data or checkpoints that do not fit the model
│   │   └── UnknownFamilyError     the structure of the model is not known
│   ├── DisputeError               claims that cannot be ruled on
│   ├── ScanMismatchError          a folder that holds the results of another scan
│   ├── MissingExtraError          an optional part is not installed
│   └── StoppedError               stopped by Ctrl-C or a signal
├── DefectError                    exit code 70: a fault of NeuralMark's, to be reported
└── InputError                     exit code 3: unreadable or unsafe input
    ├── KeyFileError               not a key file, damaged, or beyond the caps
    │   └── WrongPassphraseError   wrong passphrase (or an edited encrypted file)
    ├── AnchorError                not an anchor, damaged, edited, or beyond the caps
    ├── TriggerError               no triggers, damaged, edited, or beyond the caps
    ├── BuyersError                no list of buyers, or two of one name in it
    ├── RecordError                a claim, verdict, card or ruling that is not one
    ├── ResultsError               a folder of lab results that cannot be used
    ├── DataSetError               a data set that cannot be used
    │   ├── MissingDataSetError    not there, or a part of it
    │   └── DamagedDataSetError    not what was published
    ├── CheckpointError            a model file that cannot be read
    │   ├── UnknownFormatError     no known format
    │   ├── AmbiguousFolderError   a folder with two models; loaders differ in which they take
    │   ├── MalformedError         truncated, overlapping, lying
    │   ├── UnsafeError            would leave its folder, exhaust memory, or need its code run
    │   ├── UnreadableError        its weights are stored in a form that cannot be read
    │   ├── RemoteError            a URL that cannot be read: dead, stalled, cut off, lied about
    │   │   ├── AddressError       a URL that is refused: private, unknown, with credentials in it
    │   │   ├── AccessError        credentials that are missing or wrong; a gated model
    │   │   └── ChangedError       another object behind the URL than the one that was begun with
    │   └── InterruptedEmbedError  an in-place embedding was cut short; recover first
    ├── SandboxError               a reader that died in its sandbox, or could not be confined
    │   ├── MemoryLimitError       reading it takes more memory than the sandbox has
    │   └── TimeLimitError         reading it takes longer than the sandbox may
    ├── AlignLimitError            too many channels to put back in order within the limit
    └── NonFiniteError             NaN or infinity where the mark is read
"""


class NeuralMarkError(Exception):
    """Base of all errors raised on purpose; the message is one line that says what to do."""

    exit_code = 3


class NeuralMarkWarning(UserWarning):
    """What is asked for works, but may not be what is wanted."""


class UsageError(NeuralMarkError):
    """The call cannot be carried out: wrong names, values or paths."""

    exit_code = 2


class ParameterError(UsageError):
    """A value out of its range."""


class UnknownTensorError(UsageError):
    """No tensor of that name; the nearest ones are suggested."""


class UnsuitableTensorError(UsageError):
    """A tensor that cannot carry a mark as it is stored (dtype, layout, quantisation)."""


class TooFewCarriersError(UsageError):
    """The tensors are too small for this key's bits, pools and rounds."""


class InfeasibleError(UsageError):
    """No weights can carry these bits at this margin."""


class ClaimMismatchError(UsageError):
    """The claim belongs to another key, or its parameters disagree with the key's."""


class AnchorMismatchError(UsageError):
    """The anchor belongs to another key or claim, or the original is not the one it was made of."""


class TriggerMismatchError(UsageError):
    """Triggers that do not fit the model, the key or the claim."""


class PassportMismatchError(UsageError):
    """Passports, or a private branch, that were made for other layers."""


class MissingNormError(UsageError):
    """A network, or a layer of it, has no norm that a passport could take the place of."""


class LiveModelError(UsageError):
    """The key's scheme reads the activations of a live model, and something else was given."""


class ModelCodeError(UsageError):
    """The code of a network cannot be run, or does not fit the checkpoint."""


class PassphraseError(UsageError):
    """No passphrase was given, or the two typed ones differ."""


class OutputError(UsageError):
    """The output cannot or must not be written."""


class CheckFailedError(UsageError):
    """No candidate passed the owner's own check."""


class UnknownSchemeError(UsageError):
    """No watermarking scheme of that name; the nearest one is suggested."""


class AttackError(UsageError):
    """An attack that cannot be carried out as asked."""


class UnknownAttackError(AttackError):
    """No attack of that name; the nearest one is suggested."""


class NoMarkError(AttackError):
    """The model does not carry the mark that is to be attacked."""


class MissingDataError(AttackError):
    """The attack needs data, a live model or other checkpoints, and got none."""


class DataMismatchError(AttackError):
    """Data or checkpoints that do not fit the model."""


class UnknownFamilyError(AttackError):
    """The structure of the model is not known, so it cannot be rebuilt with the same function."""


class DisputeError(UsageError):
    """Claims that cannot be ruled on: one party only, or the same name twice."""


class ScanMismatchError(UsageError):
    """A folder of results of another scan: other keys, targets or options."""


class MissingExtraError(UsageError):
    """An optional part is not installed; the message holds the install line."""


class StoppedError(UsageError):
    """Stopped by Ctrl-C or a signal; nothing was left behind."""


class DefectError(NeuralMarkError):
    """A fault of NeuralMark's own; the command line gives this name to every unforeseen error."""

    exit_code = 70


class InputError(NeuralMarkError):
    """Unreadable or unsafe input."""


class KeyFileError(InputError):
    """Not a key file, a damaged one, or one beyond the caps."""


class WrongPassphraseError(KeyFileError):
    """The passphrase is wrong, or the encrypted file was edited."""


class AnchorError(InputError):
    """Not an anchor file, a truncated, edited or lying one, or one beyond the caps."""


class TriggerError(InputError):
    """Not a set of triggers, or one that was damaged, edited, or is beyond the caps."""


class BuyersError(InputError):
    """A list of buyers that cannot be used: empty, two of one name, or unprintable names."""


class RecordError(InputError):
    """A claim, verdict, card or ruling that cannot be read."""


class ResultsError(InputError):
    """A folder of lab results that another version wrote, or that is damaged."""


class DataSetError(InputError):
    """A data set that cannot be used."""


class MissingDataSetError(DataSetError):
    """A data set, or a part of it, is not there; the message says where to get it."""


class DamagedDataSetError(DataSetError):
    """Files of a data set that are not what was published: truncated, swapped, or no images."""


class CheckpointError(InputError):
    """A model file that cannot be read."""


class UnknownFormatError(CheckpointError):
    """The bytes are of no known checkpoint format."""


class AmbiguousFolderError(CheckpointError):
    """A folder with two models (a whole file and an index, two formats): name one of them."""


class MalformedError(CheckpointError):
    """A truncated, overlapping, oversized or lying file."""


class UnsafeError(CheckpointError):
    """The file reaches outside its folder, would exhaust memory, or cannot be read unexecuted."""


class UnreadableError(CheckpointError):
    """A good part of the weights is stored in a form that cannot be read: quantised, packed."""


class RemoteError(CheckpointError):
    """A URL that cannot be read: a dead link, a server that stalls, cuts off, or lies."""


class AddressError(RemoteError):
    """A URL that is refused: a private address, an unknown scheme, credentials in it."""


class AccessError(RemoteError):
    """Credentials for a URL are missing or wrong, or the model is gated."""


class ChangedError(RemoteError):
    """What is behind a URL is another object than the one that was begun with."""


class InterruptedEmbedError(CheckpointError):
    """An in-place embedding was cut short; the file must be recovered first."""


class SandboxError(InputError):
    """A reader that died in its sandbox, or that could not be confined."""


class MemoryLimitError(SandboxError):
    """Reading takes more memory than the sandbox has; the message says how to raise the limit."""


class TimeLimitError(SandboxError):
    """Reading takes longer than the sandbox may; the message says how to raise the limit."""


class AlignLimitError(InputError):
    """More channels than the stated limit allows to compare; the message says what would do."""


class NonFiniteError(InputError):
    """NaN or infinity where the mark is read."""

    def __init__(self, message: str, tensor: str | None = None) -> None:
        """`tensor` is the stored name of the one that holds it, where that is known."""
        super().__init__(message)
        self.tensor = tensor
