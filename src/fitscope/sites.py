"""A site: one tensor of the training step, named. The only module that formats or parses a site's name.

    activations/encoder/dense        kind `activations`, layer `encoder/dense`
    gradients/dense#2[0]             the first output of the second call of `dense` in one step
    weight_gradients/conv1/kernel    kind `weight_gradients`, layer `conv1`, weight `kernel`
    activity/dense                   derived from the activations of `dense`
    metrics/accuracy, taps/attention, loss/d_optimizer, features/range      a kind and a label, no layer
    validation/changes/predictions   the change since the previous batch, in the validation pass

`Site` is that name, a string, and carries the facts it was made from as attributes. Taps make sites from the facts they
know, the store writes the facts as columns, and queries use the columns. `Site.parse` is for names without facts: those
a user typed, and those in runs of format 1. It cannot tell an output called `out` of layer `a` from a layer `a/out`.
"""

from __future__ import annotations

from typing import Any

#: Passes over data that do not train. The name of a site in such a pass begins with the pass.
PASSES = ("validation", "evaluate", "predict")
TRAIN = "train"  #: the pass of a site of the training

OF_LAYERS = ("activations", "gradients")  #: the kinds that a layer has
OF_WEIGHTS = ("weights", "weight_gradients", "updates")  #: the kinds that a weight has

#: A kind, and the path of a layer or weight (or the label of a tap). Watches name places, and taps look them up.
Place = tuple[str, str]

#: The kinds whose tensors have a row for each sample.
_BATCHED = frozenset((*OF_LAYERS, "inputs", "targets", "predictions", "taps", "sample_loss"))
_CHANGES = "changes"

# Sites by their facts: an eager step makes the same hundreds again at every captured step.
_known: dict[tuple[Any, ...], Site] = {}
MOST_KNOWN = 100_000


def utf8(text: str) -> str:
    """The text, with lone surrogates spelt out: no file, terminal or page could hold them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class Site(str):
    """The name of a site, with the facts it was made from."""

    base: str  #: the kind of the tensor
    layer: str  #: the path of the layer, or ""
    weight: str  #: the name of the weight below its layer, or ""
    label: str  #: the name of a metric, tap, optimizer, input or output, or ""
    suffix: str  #: distinguishes several tensors: the call (`#2`), the output (`[0]`, `/key`)
    in_pass: str  #: `TRAIN`, or one of `PASSES`
    moved: bool  #: the site is the change of the tensor since the previous batch
    batched: bool  #: the first axis of the tensor counts samples
    place: Place  #: the key for watches and taps: all calls and outputs of a layer are one place

    __slots__ = ("base", "batched", "in_pass", "label", "layer", "moved", "place", "suffix", "weight")

    def __new__(
        cls,
        base: str,
        layer: str = "",
        weight: str = "",
        label: str = "",
        suffix: str = "",
        in_pass: str = TRAIN,
        *,
        moved: bool = False,
        batched: bool | None = None,
    ) -> Site:
        facts = (base, layer, weight, label, suffix, in_pass, moved, batched)
        known = _known.get(facts) if cls is Site else None
        if known is not None:
            return known
        base, layer, weight, label, suffix = map(utf8, (base, layer, weight, label, suffix))
        before = ("" if in_pass == TRAIN else in_pass, _CHANGES if moved else "")
        self = super().__new__(cls, "/".join(filter(None, (*before, base, layer, weight, label))) + suffix)
        self.base, self.layer, self.weight, self.label = base, layer, weight, label
        self.suffix, self.in_pass, self.moved = suffix, in_pass, moved
        self.batched = base in _BATCHED if batched is None else batched
        self.place = base, label if base == "taps" else "/".join(filter(None, (layer, weight)))
        if cls is Site:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[facts] = self
        return self

    @classmethod
    def parse(cls, name: str) -> Site:
        """Parses a name into a site with the facts that the name contains."""
        if isinstance(name, Site):
            return name
        name = utf8(name)
        in_pass, rest = _cut(name, PASSES)
        moved, rest = _cut(rest, (_CHANGES,))
        base, _, path = rest.partition("/")
        base, call = _without_suffix(base)
        path, suffix = ("", f"{call}/{path}" if path else call) if call else _without_suffix(path)
        layer = weight = label = ""
        if base in OF_WEIGHTS:
            layer, _, weight = path.rpartition("/")
            weight, suffix = weight + suffix, ""
        elif base in (*OF_LAYERS, "activity"):
            layer = path
        else:
            label = path
        found = cls(base, layer, weight, label, suffix, in_pass or TRAIN, moved=bool(moved))
        return found if found == name else cls(name)  # an odd name is its own kind

    @classmethod
    def at(cls, place: Place, label: str = "", suffix: str = "") -> Site:
        """The site of a layer, of a weight by its path, or of a kind without layers."""
        kind, path = place
        layer, _, weight = path.rpartition("/") if kind in OF_WEIGHTS else (path, "", "")
        return cls(kind, layer, weight, label, suffix)

    @property
    def kind(self) -> str:
        """The kind, as in the tables: `gradients`, or `changes/gradients`."""
        return f"{_CHANGES}/{self.base}" if self.moved else self.base

    @property
    def path(self) -> str:
        """The name below its kind: `conv1/kernel`, `dense#2`, `accuracy`."""
        return "/".join(filter(None, (self.layer, self.weight, self.label))) + self.suffix

    def within(self, in_pass: str) -> Site:
        """This site in another pass."""
        return self if in_pass == self.in_pass else self.but(in_pass=in_pass)

    def activity(self) -> Site:
        """The site for the activity of these units."""
        return self.but(base="activity", batched=False)

    def beside(self, kind: str, label: str) -> Site:
        """A site of another kind, derived from this input, target or prediction."""
        return Site(
            kind, label="/".join(filter(None, (label, self.label))), suffix=self.suffix, in_pass=self.in_pass
        )

    def change(self) -> Site:
        """The site for the change since the previous batch."""
        return self.but(moved=True)

    def but(self, **facts: Any) -> Site:
        """This site with some facts replaced."""
        mine = {name: getattr(self, name) for name in self.__slots__ if name != "place"}
        return Site(**(mine | facts))

    def __getnewargs_ex__(self) -> tuple[tuple[str, ...], dict[str, Any]]:  # for pickle and copy
        mine = (self.base, self.layer, self.weight, self.label, self.suffix, self.in_pass)
        return mine, {"moved": self.moved, "batched": self.batched}


def _cut(name: str, heads: tuple[str, ...]) -> tuple[str, str]:
    """Splits a name into its first part, if it is one of these, and the rest."""
    head, slash, rest = name.partition("/")
    return (head, rest) if slash and head in heads else ("", name)


def _without_suffix(path: str) -> tuple[str, str]:
    """Splits a path into its stem and its suffix `#2` or `[0]`, if any."""
    at = min((i for i in (path.find("#"), path.find("[")) if i > 0), default=len(path))
    return path[:at], path[at:]


def pass_of(name: str) -> str | None:
    """The pass of a site name; None for a training site."""
    return _cut(name, PASSES)[0] or None


def abbreviates(short: str, name: str) -> bool:
    """Whether the parts of `short` occur in `name` in this order, and both end with the same part."""
    *wanted, last = short.split("/")
    *there, end = name.split("/")
    remaining = iter(there)
    return last == end and all(part in remaining for part in wanted)
