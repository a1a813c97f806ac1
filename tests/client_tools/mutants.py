"""Faults of the library that a case must notice: each is one edit of ``auxout.client``."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault."""

    name: str
    module: str
    old: str
    """What stands there, once."""
    new: str


MUTANTS = (
    Mutant("one row more is due", "_kernel", "return num_tokens - start - 1", "return num_tokens - start"),
    Mutant("any number of rows", "decode", "if count != due:", "if count > due:"),
    Mutant(
        "surplus rows are cut", "decode", "if count != due:", "values = values[:due]\n    if count < due:"
    ),
    Mutant("ids wrap", "decode", "if low < 0 or high > np.iinfo(dtype).max:", "if False:"),
    Mutant(
        "only negative ids are refused", "decode", "if low < 0 or high > np.iinfo(dtype).max:", "if low < 0:"
    ),
    Mutant("base64 is read leniently", "decode", "b64decode(text, validate=True)", "b64decode(text)"),
    Mutant("the payload's start is ignored", "decode", "!= start:", "!= start and False:"),
    Mutant("shapes are not compared", "decode", "if not fits and", "if False and"),
    Mutant(
        "dtype by a smaller limit", "schema", "np.dtype(row_dtype(self.num_experts))", 'np.dtype("uint8")'
    ),
    Mutant("experts are not counted", "rows", ">= schema.num_experts:", "> schema.num_experts:"),
    Mutant("one slot is a lost layer", "rows", "if schema.top_k > 1 else ()", "if schema.top_k > 0 else ()"),
    Mutant("repeated ids pass", "rows", "if repeated.any():", "if repeated.all() and False:"),
    Mutant(
        "dense layers are not looked at",
        "rows",
        "if captured[dense].any():",
        "if captured[dense].all() and False:",
    ),
    Mutant("any prompt", "trajectory", "if np.array_equal(prompt[:num_known], self.tokens):", "if True:"),
    Mutant("a gap of one row", "trajectory", "rows.start > end:", "rows.start > end + 1:"),
    Mutant(
        "rows may end early", "trajectory", "if rows.end != num_tokens - 1:", "if rows.end > num_tokens - 1:"
    ),
    Mutant("the last call wins", "trajectory", 'if keep == "last" else', 'if keep != "" else'),
    Mutant("the first call wins", "trajectory", 'if keep == "last" else', 'if keep == "" else'),
    Mutant("equality is not checked", "trajectory", 'if keep == "equal" and rows is not None:', "if False:"),
    Mutant(
        "the boundary row stays unknown",
        "trajectory",
        "_clipped(filling, end, max(",
        "_clipped(filling, end + 1, max(",
    ),
    Mutant(
        "tokens may lack rows",
        "trajectory",
        "            if num_output:\n",
        "            if num_output < 0:\n",
    ),
    Mutant(
        "a cut keeps a row more",
        "trajectory",
        "_clipped(self.segments, 0, num_tokens)",
        "_clipped(self.segments, 0, num_tokens + 1)",
    ),
    Mutant(
        "versions begin a token late",
        "_kernel",
        "return output - 1 + num_prompt_tokens",
        "return output + num_prompt_tokens",
    ),
    Mutant(
        "a branch is not one",
        "trajectory",
        "        other.truncate(position)\n        return other",
        "        self.truncate(position)\n        return self",
    ),
    Mutant(
        "parts may differ",
        "rows",
        "if (at := first_difference(mine, theirs)) is not None:",
        "if (at := None) is not None:",
    ),
    Mutant("the mask is all true", "layout", "mask[first + start : first + end] = True", "mask[:] = True"),
    Mutant(
        "left is right",
        "_kernel",
        "    if not left:\n        return 0\n",
        "    if left or not left:\n        return 0\n",
    ),
    Mutant("alignment adds a block", "_kernel", "if over else num_tokens", "if over else num_tokens + align"),
    Mutant(
        "dtype by the ids",
        "layout",
        "np.iinfo(wanted).max < schema.num_experts - 1",
        "np.iinfo(wanted).max < 0",
    ),
    Mutant(
        "zigzag from the front only",
        "_kernel",
        "return rank, size + size - rank - 1",
        "return rank, size + rank",
    ),
    Mutant("fillers are not distinct", "layout", "= np.arange(schema.top_k)", "= 0"),
    Mutant(
        "dense layers count as routers",
        "layout",
        "[layer for layer in layers if layer in schema.moe_layers]",
        "list(layers)",
    ),
    Mutant("layers in any order", "layout", "if list(layers) != sorted(set(layers)):", "if False:"),
)

TORCH_MUTANTS = (
    Mutant(
        "the first part only", "torch", "parts[0] if len(parts) == 1 else torch.cat(parts, dim)", "parts[0]"
    ),
    Mutant(
        "every stage has all layers",
        "torch",
        "layer_index(tensor.shape, schema, layers)",
        "layer_index(tensor.shape, schema)",
    ),
    Mutant(
        "padded on the right always", "torch", "length, side, empty=memory", 'length, "right", empty=memory'
    ),
    Mutant("never aligned", "torch", "align=align, empty", "align=1, empty"),
    Mutant("the dtype is the rows'", "torch", "dtype=name, align", "dtype=None, align"),
    Mutant("missing rows are zeros", "torch", "missing=missing, empty", 'missing="mask", empty'),
    Mutant(
        "the length is the tokens'", "torch", "to_array(trajectory, length,", "to_array(trajectory, None,"
    ),
    Mutant(
        "rows come from the end",
        "torch",
        "tensor.narrow(dim, start, end - start)",
        "tensor.flip(dim).narrow(dim, start, end - start)",
    ),
)
"""Faults of ``auxout.client.torch``, which the cases notice when torch's functions are played."""
