"""Parts of one's own as plain torch: skeletons and README's parts are printed, others are refused by their place."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tests.documents import ROOT, blocks
from tfkit.cli.new import MODEL, USES, Skeleton, edited
from tfkit.core.registry import REGISTRY
from tfkit.models.build import build_model
from tfkit.plain.code import printed
from tfkit.plain.inputs import Unprintable, tensors
from tfkit.recipe.load import Recipe

from ..sampling import each
from .test_code import agree, small

LAST = "out: Tensor = self.down(self.up(x).square() * self.config.scale)\n        return out"
LENGTH, VALUES, PLACE = "depends on the length", "reads values of a tensor", "changes a tensor in place"
# statements of a forward, and words of the reason why it is not printed
REFUSED = [
    ("out = [x[:, 0]]; [out.append(out[-1] + y) for y in x.unbind(1)[1:]]; return torch.stack(out, 1)", LENGTH),
    ("return x * 2 if x.shape[1] > 99 else self.down(self.up(x))", LENGTH),
    ("return x * x.topk(max(1, x.shape[1] // 4), dim=1)[0].mean(1, keepdim=True)", "may depend on a length"),
    ("return x * x.topk(min(40, x.shape[1]), dim=1)[0].mean(1, keepdim=True)", "selected index k out of range"),
    ("return x if x.sum() > 0 else self.down(self.up(x))", VALUES),
    ("return x * x.sum().item()", VALUES),
    ("return x + x[x > 0].sum()", "without values"),
    ("x = self.down(self.up(x)); x += 1; return x", PLACE),
    ("x = self.down(self.up(x)); x[:, 0] = 0; return x", PLACE),
    ("return self.down(self.up(x)).add_(1)", PLACE),
    ("return torch.relu_(self.down(self.up(x)))", PLACE),
    ("return x + torch.from_numpy(self.table).to(x)", "reads a tensor [100] that the forward did not make"),
    ("return x + torch.rand_like(x)", "computes something else"),
]


def loaded(folder: Path, part: str, name: str, key: str, options: dict[str, Any], position: str = "learned") -> Recipe:
    """Return a recipe with a part, whose text is `part`, at `key`."""
    file, recipe = folder / f"{name}.py", folder / f"{name}.yaml"
    file.write_text(part, encoding="utf-8")
    text = MODEL.replace("max_length: 32", "max_length: 400").replace("position: learned", f"position: {position}")
    recipe.write_text(edited(text, key, {"type": name, **options} if options else name), encoding="utf-8")
    return tfkit.load_recipe(recipe, imports=[file])


def own(folder: Path, number: int, statements: str) -> Recipe:
    """Return a recipe with a feedforward `own<number>` of these statements."""
    text = Skeleton.of("feedforward", f"own{number}").part().replace(LAST, statements)
    text = text.replace("        self.up =", '        self.table = np.ones(100, "float32")\n        self.up =')
    text = text.replace("from torch import", "import numpy as np\nimport torch\nfrom torch import")
    return loaded(folder, text, f"own{number}", "model.layer.feedforward", {"d_ff": 64})


@pytest.mark.full
def test_skeletons_and_readme_s_parts_are_printed(tmp_path: Path) -> None:
    """One of README's is wrong in a decoder, as it sees the next token, and printed nevertheless."""
    files = {block.value: block.text for block in blocks("file", ROOT / "tfkit" / "README.md")}
    uses = {slot: use for slot, use in USES.items() if use.recipe == MODEL}
    rows = [(Skeleton.of(slot, f"my_{slot}").part(), f"my_{slot}", use.key, use.options) for slot, use in uses.items()]
    # under other names, as tests of the documents load the same files in this process
    rows.append((files["fading.py"].replace('"fading"', '"faded"'), "faded", "model.layer.attention", {"num_heads": 4}))
    rows.append((files["wide.py"].replace('"wide"', '"widened"'), "widened", "model.layer.feedforward", {}))
    each(rows, lambda *row: agree(loaded(tmp_path, *row, "none" if row[1] == "faded" else "learned")))


def test_what_cannot_be_printed_is_refused_with_its_place(tmp_path: Path) -> None:
    def check(number: int, statements: str, reason: str) -> None:
        with pytest.raises(Unprintable) as caught:
            printed(own(tmp_path, number, statements))
        said = str(caught.value)
        assert reason in said and f"own{number}" in said.lower() and "\n" not in said and caught.value.status == 1

    each([(number, *row) for number, row in enumerate(REFUSED)], check)


def test_another_thread_is_not_recorded(tmp_path: Path) -> None:
    """While a forward is recorded, a thread calls another model, and a second one prints, which waits."""
    other = build_model(small("bert-base").blueprint(), seed=0).eval()
    call = tensors(small("bert-base").blueprint(), ["input_ids"], 2, 9, 9, "cpu")
    wanted, alone = other(**call).logits, printed(small("gpt2"))
    plain = printed(own(tmp_path, 0, "return self.down(self.up(x))"))
    with ThreadPoolExecutor(2) as pool:
        called: list[Tensor] = []
        texts: list[Future[str]] = []
        recipe = own(tmp_path, 1, "self.config.meanwhile(); return self.down(self.up(x))")

        def meanwhile() -> None:
            if not texts:
                texts.append(pool.submit(printed, small("gpt2")))
            called.append(pool.submit(other, **call).result().logits)

        REGISTRY.get("feedforward", "own1").Config.meanwhile = staticmethod(meanwhile)  # type: ignore[attr-defined]
        assert printed(recipe).replace("Own1", "Own0").replace("own1", "own0") == plain
        assert called and all(torch.equal(one, wanted) for one in called) and texts[0].result() == alone
