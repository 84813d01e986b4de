"""The handle of a mark in training: adds the term, keeps the margins, tells how it stands."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from neuralmark.core.key import Placement
from neuralmark.errors import NeuralMarkError, ParameterError, UsageError
from neuralmark.marking.claiming import claim_of
from neuralmark.marking.embedding import Embedding
from neuralmark.marking.options import EmbedOptions
from neuralmark.marking.reading import Attempt
from neuralmark.marking.verification import find
from neuralmark.records import Claim
from neuralmark.training.grids import Field
from neuralmark.training.live import LiveSuspect, Pools
from neuralmark.training.masters import adopt, warn_of_hidden
from neuralmark.training.site import SealWish, Settings, Site, State
from neuralmark.training.sources import WeightSource
from neuralmark.training.watch import Company, Freezing, warn_of_copies
from neuralmark.training.work import MarkWork


class LiveMark:
    """A mark that is being trained in. Made by `neuralmark.attach`.

    Attributes:
        settings: Mode, strength, and after how many steps it is projected.
        steps: How many steps of the optimizer it has seen.

    Examples:
        >>> mark = neuralmark.attach(network, optimizer, key)
        >>> mark.rate, mark.margin > 1.9
        (1.0, True)
        >>> mark.detach()
    """

    def __init__(self, site: Site, settings: Settings, fields: Sequence[Field] = ()) -> None:
        """Nothing is hooked yet; see `attach`. `fields`: how carriers may move, if known."""
        self.settings = settings
        self.steps = 0
        self._site = site
        self._hooks: list[Any] = []
        self._on_detach: list[Callable[[], None]] = []
        self._last: Pools | None = None
        self._work = MarkWork(site, settings, fields)
        self._undo: list[tuple[WeightSource, torch.Tensor, torch.Tensor]] = []
        self._freezing = Freezing(site.sources)
        self._company = Company(site)
        if self._work.sharded:  # so that one process alone can read it before the first step
            self._last = self._work.pools()

    # What the user reads.

    @property
    def placement(self) -> Placement:
        """The marked tensors, in order: canonical name and shape."""
        return self._site.placement

    @property
    def rate(self) -> float:
        """Share of matching bits; for sharded models as of the last step."""
        return self._now().rate

    @property
    def loss(self) -> float:
        """The embedding loss (without the strength); for sharded models as of the last step."""
        return self._now().loss

    @property
    def margin(self) -> float:
        """The smallest margin in σz; for sharded models as of the last step."""
        return self._now().margin

    def measure(self) -> State:
        """Read the mark now. On a sharded model all processes must call it.

        Returns:
            Share of matching bits, embedding loss and smallest margin.

        Examples:
            >>> neuralmark.attach(network, optimizer, key).measure().rate
            1.0
        """
        with self._work.exactly():
            self._last = self._work.pools()
            return self._work.state(self._last, self.steps)

    def loss_term(self) -> torch.Tensor:
        """Strength times embedding loss, differentiable, to add to your own loss (mode "loss").

        Returns:
            A scalar tensor.

        Raises:
            UsageError: The parameters are sharded.

        Examples:
            >>> options = neuralmark.AttachOptions(mode="loss")
            >>> mark = neuralmark.attach(network, optimizer, key, options)
            >>> loss = network(torch.ones(1, 128)).sum() + mark.loss_term()
            >>> loss.backward()
        """
        if any(source.layout.sharded for source in self._site.sources):
            raise UsageError(
                'loss_term() does not work on sharded parameters: use mode="gradient", which'
                " adds the same gradient from the shards"
            )
        self._company.compare()
        with self._work.exactly():
            values = [source.values(differentiable=True) for source in self._site.sources]
            found = self._work.pools_of(values)
            self._work.learn(found, self.steps)
            term = self._work.loss(found, self.steps)
        return self.settings.strength * term

    def claim(self) -> Claim:
        """The record of this mark, as the model is now. On a sharded model all must call.

        Returns:
            The claim, to be saved beside the model.

        Raises:
            NonFiniteError: The marked weights hold NaN or infinity.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.claim().save("trained.claim.json")
        """
        site = self._site
        if self._hooks and not self.steps:
            warn_of_copies(self)
        suspect = LiveSuspect(site.model.module)
        if site.triggers:
            whole = suspect.digest(suspect.digests())
            return claim_of(site.key, site.placement, whole, None, triggers=site.triggers)
        by_name = {tensor.name: tensor for tensor in suspect.tensors()}
        tensors = tuple(by_name[name] for name, _ in site.placement)
        attempt = Attempt(site.placement, tensors, "names", anchor=site.anchor_digest)
        marked = suspect.digest(find(suspect, site.key, attempt).reading.digests)
        return claim_of(site.key, site.placement, marked, None, site.anchor)

    def seal(
        self,
        out: str | Path,
        options: EmbedOptions | None = None,
        *,
        overwrite: bool = False,
        writes: bool | None = None,
    ) -> Embedding:
        """End the training: write a second mark, bound to an anchor of the trained weights.

        A mark that is trained in cannot be bound to weights that do not exist yet, so it is read by
        position only. This one is found wherever the weights go. Claim and anchor are saved beside
        `out`, where you save the model afterwards; the handle is detached. Called again, it seals
        the weights as they are then: claim and anchor are renewed, so save the model anew, too. On
        a sharded model all processes must call it.

        Args:
            out: Where the model will be saved; it is not saved here.
            options: Which tensors, how strong, how many heads; by default as `embed` has it.
            overwrite: Whether an anchor of another key that is there may be replaced.
            writes: Whether this process writes the files; by default the first of all does.

        Returns:
            What was done; `others` has the verdicts on the trained mark before and after.

        Raises:
            UsageError: The weights cannot be written, or an option is not for live models.
            OutputError: Claim or anchor cannot be written.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> sealed = mark.seal("trained.safetensors")
            >>> sealed.verdict.verified, sealed.anchor_file
            (True, 'trained.safetensors.anchor')
        """
        from neuralmark.training.sealing import seal_training

        return seal_training(self, self._site, out, SealWish(options, overwrite, writes))

    def detach(self) -> None:
        """Stop marking; the weights stay as they are. May be called at any time, also twice.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.detach()
            >>> mark.rate
            1.0
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        while self._on_detach:
            self._on_detach.pop()()

    # Saving and resuming.

    def __reduce__(self) -> Any:
        """Refuse: the handle holds the key's secret."""
        raise UsageError(
            "a mark in training holds the key's secret and is neither copied nor pickled: save its"
            " state_dict(), and attach again"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on exactly as this one would; holds no secret.

        Returns:
            Plain values, to be saved with the state of the optimizer.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.state_dict()["mode"]
            'projection'
        """
        return {
            "version": 1,
            "steps": self.steps,
            "fingerprint": self._site.key.fingerprint,
            "placement": [[name, list(shape)] for name, shape in self.placement],
            "mode": self.settings.mode,
            "strength": self.settings.strength,
            "every": self.settings.every,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved handle stopped.

        Args:
            state: What `state_dict` gave.

        Raises:
            ParameterError: It is the state of another mark, or of none.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.load_state_dict(mark.state_dict() | {"steps": 40})
            >>> mark.steps
            40
        """
        mine = self.state_dict()
        if not isinstance(state, dict) or set(state) != set(mine):
            raise ParameterError("this is not the state of a mark")
        for name in set(mine) - {"steps"}:
            if state[name] != mine[name]:
                raise ParameterError(
                    f"the saved mark differs in {name}: {state[name]!r} then, {mine[name]!r} now;"
                    " attach with the same key, tensors and settings"
                )
        self.steps = int(state["steps"])
        if self.steps:
            for source, before, after in self._undo:
                if torch.equal(source.values(), after):  # else others were loaded since
                    source.write(before)
        self._undo.clear()

    # What the hooks do.

    def start(
        self, optimizer: torch.optim.Optimizer, undo: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Hook the optimizer's step, as the mode wants it. `attach` calls it.

        Args:
            optimizer: The optimizer that really steps.
            undo: What to do when the mark is detached.

        Raises:
            InfeasibleError: No weights can carry these bits at this margin.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.detach()
            >>> mark.start(optimizer)
        """
        self._on_detach += undo
        self._company.compare()
        if self.settings.mode == "gradient":
            self._hooks.append(optimizer.register_step_pre_hook(self.before_step))
        elif self.settings.mode == "projection":
            self._hooks.append(optimizer.register_step_post_hook(self.after_step))
            try:
                self.begin()
            except NeuralMarkError:
                self.detach()
                raise

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Add the gradient before a step, or after each closure that computes gradients.

        `attach` hooks it for the mode "gradient"; the optimizer calls it.

        Args:
            optimizer: The optimizer that is about to step.
            args: What its step was called with, by position.
            kwargs: What its step was called with, by name.

        Returns:
            The arguments with the closure wrapped, or None where there is no closure.

        Examples:
            >>> options = neuralmark.AttachOptions(mode="gradient")
            >>> mark = neuralmark.attach(network, optimizer, key, options)
            >>> network(torch.ones(1, 128)).sum().backward()
            >>> mark.before_step(optimizer, (optimizer,), {})
            >>> mark.steps
            1
        """
        if _rehearsed(optimizer, kwargs) or self._rests():
            return None
        self._company.compare()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._last = self._add_gradient(getattr(optimizer, "grad_scale", None))
            self.steps += 1
            return None

        def with_term() -> Any:
            with torch.enable_grad():
                value = closure()
            step, self._last = self.steps, self._add_gradient(None)
            if value is None:
                return None
            term = self.settings.strength * self._work.loss(self._last, step)
            return value + term.to(value.device)

        self.steps += 1
        if "closure" in kwargs:
            return args, {**kwargs, "closure": with_term}
        return (args[0], with_term, *args[2:]), kwargs

    def begin(self) -> None:
        """Project for the first time; `load_state_dict` of a later step takes it back.

        `attach` calls it. Weights that were loaded before attaching may be from between two
        projections.

        Raises:
            InfeasibleError: No weights can carry these bits at this margin.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.begin()
            >>> mark.rate
            1.0
        """
        before = [source.values() for source in self._site.sources]
        self.project()
        self._undo = [
            (source, values, source.values())
            for source, values in zip(self._site.sources, before, strict=True)
        ]

    def after_step(self, optimizer: Any, _args: Any, kwargs: Any) -> None:
        """Project the weights so that every bit has its margin again.

        `attach` hooks it for the mode "projection"; the optimizer calls it.

        Args:
            optimizer: The optimizer that has stepped.
            _args: What its step was called with, by position; not used.
            kwargs: What its step was called with, by name.

        Raises:
            InfeasibleError: No weights can carry these bits at this margin.

        Examples:
            >>> mark = neuralmark.attach(network, optimizer, key)
            >>> mark.after_step(optimizer, (optimizer,), {})
            >>> mark.steps
            1
        """
        if _rehearsed(optimizer, kwargs):
            return
        self._company.compare()
        adopt(self._site.sources, optimizer, self.settings.mode)
        warn_of_hidden(self._undo)
        self._undo.clear()
        if self._freezing.frozen():
            return
        if self.steps % self.settings.every == 0:
            self.project()
        self.steps += 1

    def project(self, goal: float | None = None) -> None:
        """The smallest change of the weights after which every bit has its margin.

        Args:
            goal: The margin to reach; by default strength · σz of the weights as they are.

        Raises:
            InfeasibleError: No weights can carry these bits at this margin.

        Examples:
            >>> options = neuralmark.AttachOptions(mode="loss")
            >>> mark = neuralmark.attach(network, optimizer, key, options)
            >>> mark.project()
            >>> mark.rate
            1.0
        """
        self._last = self._work.project(self.steps, goal)

    # Machinery.

    def _now(self) -> State:
        if self._last is None or not self._work.sharded:
            return self.measure()
        return self._work.state(self._last, self.steps)

    def _rests(self) -> bool:
        """Whether all marked tensors were frozen since the mark was attached."""
        return len(self._freezing.frozen()) == len(self._site.sources)

    def _add_gradient(self, scale: torch.Tensor | None) -> Pools:
        return self._work.add_gradient(self.steps, scale, self._freezing.frozen)


def _rehearsed(optimizer: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a step is taken only to make the optimizer's state.

    torch.distributed.checkpoint does so before it saves or loads one, with a learning rate of 0.
    """
    if kwargs != {"closure": None}:
        return False
    rates = [group.get("lr") for group in optimizer.param_groups]
    on_device = [isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in rates]
    return not any(on_device) and all(rate == 0 for rate in rates)
