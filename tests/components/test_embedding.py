"""Token embeddings against their formula, and vectors from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfkit.components.embedding import Tokens, load_vectors
from tfkit.core.component import Shape
from tfkit.core.context import Placement
from tfkit.core.errors import DataError, UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.slots import PositionFacts

from ..sampling import looped

SHAPE = Shape(d_model=4, vocab_size=7)
IDS = torch.tensor([[1, 2, 6], [0, 0, 3]])
PLACES = torch.arange(3)[None]
PLACED = torch.randn(1, 3, 3)


class Added(PositionFacts):
    """A position that adds fixed vectors, of width 3 unless given others."""

    def __init__(self, vectors: Tensor = PLACED) -> None:
        self.vectors = vectors

    def embed(self, positions: Tensor) -> Tensor:
        return self.vectors


NOWHERE, SOMEWHERE = Placement((), PLACES, PLACES), Placement((Added(),), PLACES, PLACES)


def build(**options: Any) -> Tokens:
    config = Tokens.Config.model_validate(options)
    assert not list(config.check(SHAPE))
    part: Tokens = config.build(SHAPE).eval()
    return part


def test_a_plain_table() -> None:
    assert not build(frozen=True).tokens.weight.requires_grad
    part = build()
    assert list(part.state_dict()) == ["tokens.weight"]
    assert torch.equal(part(Inputs(IDS), NOWHERE), part.tokens.weight[IDS])


@looped(("scale", "factor"), [("sqrt_d_model", 2.0), ("1/sqrt_d_model", 0.5), (3.0, 3.0), (None, 1.0)])
def test_scale(scale: Any, factor: float) -> None:
    part = build(scale=scale)
    assert torch.equal(part(Inputs(IDS), NOWHERE), part.tokens.weight[IDS] * factor)


@pytest.mark.parametrize("after", [False, True])
def test_everything_at_once_in_the_order_of_the_formula(after: bool) -> None:
    part = build(scale=3.0, segments=2, norm="layer_norm", d_embedding=3, norm_after_projection=after)
    types = torch.tensor([[0, 1, 1], [1, 0, 0]])
    assert part.width == 3 and part.norm.weight.shape == (4 if after else 3,)
    total = 3 * part.tokens.weight[IDS] + part.segments.weight[types] + PLACED  # type: ignore[union-attr]
    weight, bias = part.projection.weight, part.projection.bias
    eps, wide = 1e-5, 4 if after else 3

    def norm(x: Tensor) -> Tensor:
        centred = x - x.sum(-1, keepdim=True) / wide
        return centred / ((centred**2).sum(-1, keepdim=True) / wide + eps).sqrt()

    expected = norm(total @ weight.T + bias) if after else norm(total) @ weight.T + bias
    out = part(Inputs(IDS, types), SOMEWHERE)
    assert out.shape == (2, 3, 4)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_a_token_projected_by_itself() -> None:
    part = build(scale=3.0, segments=2, norm="layer_norm", d_embedding=3, project_tokens=True, projection_bias=False)
    assert (part.width, part.tokens.embedding_dim, part.projection.bias) == (4, 3, None)
    placed = torch.randn(1, 3, 4)
    placement = Placement((Added(placed),), PLACES, PLACES)
    total = 3 * part.tokens.weight[IDS] @ part.projection.weight.T + part.segments.weight[0] + placed  # type: ignore[union-attr]
    centred = total - total.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(part(Inputs(IDS), placement), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="width 3"):
        part(Inputs(), placement, torch.randn(2, 3, 4))


def test_a_norm_before_anything_is_added() -> None:
    part = build(segments=2, norm={"type": "rms_norm", "eps": 1e-6}, norm_before_positions=True)
    placed = torch.randn(1, 3, 4)
    rows = part.tokens.weight[IDS]
    normed = rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    out = part(Inputs(IDS), Placement((Added(placed),), PLACES, PLACES))
    torch.testing.assert_close(out, normed + part.segments.weight[0] + placed)  # type: ignore[union-attr]


def test_the_first_segment_is_added_when_the_call_gives_none() -> None:
    part = build(segments=2)
    expected = part(Inputs(IDS, torch.zeros_like(IDS)), NOWHERE)
    assert torch.equal(part(Inputs(IDS), NOWHERE), expected)


def test_types_without_segments_are_refused() -> None:
    with pytest.raises(UsageError, match="token_type_ids"):
        build()(Inputs(IDS, torch.zeros_like(IDS)), NOWHERE)


def test_vectors_stand_in_for_looked_up_rows() -> None:
    part = build(scale=3.0, segments=1, norm="rms_norm", d_embedding=3)
    vectors = part.tokens(IDS)
    torch.testing.assert_close(part(Inputs(), SOMEWHERE, vectors), part(Inputs(IDS), SOMEWHERE))
    with pytest.raises(UsageError, match="width 3"):
        part(Inputs(), SOMEWHERE, torch.randn(2, 3, 4))
    with pytest.raises(UsageError, match="not both"):
        part(Inputs(IDS), SOMEWHERE, vectors)
    with pytest.raises(UsageError, match="either"):
        part(Inputs(), SOMEWHERE)


def test_a_factorised_table_is_projected_even_at_equal_width() -> None:
    assert build(d_embedding=4).projection.weight.shape == (4, 4)
    assert Tokens.Config(d_embedding=3).width(SHAPE) == 3 and Tokens.Config().width(SHAPE) == 4


@looped(
    ("options", "shape", "option"),
    [
        ({}, Shape(4), ""),
        ({"norm_after_projection": True, "norm": "rms_norm"}, SHAPE, "norm_after_projection"),
        ({"norm_after_projection": True, "d_embedding": 2}, SHAPE, "norm_after_projection"),
        ({"project_tokens": True}, SHAPE, "project_tokens"),
        ({"projection_bias": False}, SHAPE, "projection_bias"),
        ({"norm_before_positions": True}, SHAPE, "norm_before_positions"),
        (
            {"project_tokens": True, "norm_after_projection": True, "d_embedding": 2, "norm": "rms_norm"},
            SHAPE,
            "norm_after_projection",
        ),
    ],
)
def test_problems(options: dict[str, Any], shape: Shape, option: str) -> None:
    assert [problem.option for problem in Tokens.Config.model_validate(options).check(shape)] == [option]


# --- vectors from a file ---

IDS_OF = {"a": 0, "cat": 2, "Ünal": 3}
GLOVE = "a 1 2 3\ndog 9 9 9\nÜnal -1e-1 0 .5\na 7 7 7\n"
WORD2VEC = "3 3\ncat 4 5 6 \ndog 9 9 9\na 1 2 3\n"


def load(path: Path, content: str | bytes) -> tuple[int, list[list[float]]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    table = torch.zeros(4, 3, requires_grad=True)
    return load_vectors(path, IDS_OF.get, table), table.tolist()


def test_glove(tmp_path: Path) -> None:
    count, rows = load(tmp_path / "v.txt", GLOVE)
    assert count == 2 and rows[0] == [1, 2, 3] and rows[1] == rows[2] == [0, 0, 0]
    assert rows[3] == pytest.approx([-0.1, 0, 0.5])


def test_word2vec(tmp_path: Path) -> None:
    assert load(tmp_path / "v.txt", WORD2VEC.replace("\n", "\r\n")) == (2, [[1, 2, 3], [0] * 3, [4, 5, 6], [0] * 3])


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("a 1 2 3\ncat 1 2\n", ":2:", "2 numbers after 'cat', but the token table has width 3"),
        ("a 1 2 3 4\n", ":1:", "4 numbers"),
        ("a 1 2 3\ncat 1 x 3\n", ":2:", "'x' is not a number"),
        *((f"a 1 {number} 3\n", ":1:", "not finite in float32") for number in ("nan", "-inf", "1e300", "-3.5e38")),
        ("2 5\na 1 2 3 4 5\n", ":1:", "width 5, but the token table has width 3"),
        ("2 3\na 1 2 3\n", ":2:", "ends after 1 vectors, but line 1 announces 2"),
        ("", ":", "contains no vectors"),
        ("0 3\n", ":", "contains no vectors"),
        (b"a 1 2 3\n\xff\xfe 1 2 3\n", ":2:", "UTF-8"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str | bytes, line: str, message: str) -> None:
    path = tmp_path / "v.txt"
    with pytest.raises(DataError) as caught:
        load(path, content)
    assert str(caught.value).startswith(f"{path}{line}") and message in str(caught.value)


def binary(first: bytes, *vectors: tuple[bytes, list[float]], end: bytes = b"") -> bytes:
    return first + b"".join(token + b" " + np.asarray(row, "<f4").tobytes() + end for token, row in vectors)


A, CAT = (b"a", [1.0, 2.0, 3.0]), (b"cat", [4.0, 5.0, 6.5])


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_binary_word2vec(tmp_path: Path, end: bytes) -> None:
    content = binary(b"4 3\n", CAT, (b"dog", [9.0] * 3), A, (b"a", [7.0] * 3), end=end)
    assert load(tmp_path / "v.bin", content) == (2, [[1, 2, 3], [0] * 3, [4, 5, 6.5], [0] * 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1: not a word2vec file, whose first line is 'count width'"),
        (GLOVE.encode(), ":1: not a word2vec file"),
        (b"\xba\x16\x4f\x2f" * 2**12, ":1: not a word2vec file"),
        (b"9" * 5000 + b" 3\n", ":1: not a word2vec file"),
        (b"0 3\n", ": contains no vectors"),
        (binary(b"2 4\n", A, CAT), ":1: vectors have width 4, but the token table has width 3"),
        (binary(b"3 3\n", A, CAT), ":1: 3 vectors of width 3 need at least 43 bytes, but the file has 34"),
        (
            binary(b"999999999999999999 3\n", A),
            ":1: 999,999,999,999,999,999 vectors of width 3 need at least 13,000,000,",
        ),
        (
            binary(b"2 3\n", A, CAT)[:-1],
            ": vector 2 at byte 18: the file ends within this vector, but line 1 announces 2 vectors",
        ),
        (binary(b"1 3\n", A, CAT), ": contains more than the 1 vectors that line 1 announces"),
        (binary(b"2 3\n", A, (b"", [4.0] * 3))[:30], ": vector 2 at byte 18: the file ends within this vector"),
        (binary(b"2 3\n", A, (b"x" * 5000, [1.0] * 3)), ": vector 2 at byte 18: expected a token followed by a space"),
        (binary(b"2 3\n", A, (b"\xff\xfe", [1.0] * 3)), ": vector 2 at byte 18: the token is not UTF-8 text"),
        (binary(b"1 3\n", (b"a", [1.0, float("nan"), 2.0])), ": vector 1 at byte 4: the vector of 'a' is not finite"),
    ],
)
def test_a_broken_binary_file_is_named_with_its_vector(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "v.bin"
    with pytest.raises(DataError) as caught:
        load(path, content)
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt: no such file"):
        load_vectors(tmp_path / "nowhere.txt", IDS_OF.get, torch.zeros(4, 3))


# --- token_dropout ---


def test_token_dropout_leaves_masked_tokens_out_and_scales_the_others() -> None:
    from tfkit.components.embedding import TokenDropout

    shape = Shape(d_model=4, vocab_size=9, max_length=8)
    made = TokenDropout(TokenDropout.Config(mask_id=3, mask_rate=0.12), shape)
    ids = torch.tensor([[1, 3, 2, 5, 0], [3, 3, 2, 2, 2]])
    real = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    out = made(Inputs(ids, real=real), Placement((), ids, ids))
    for row, factor in ((0, 0.88 / (1 - 1 / 4)), (1, 0.88 / (1 - 2 / 5))):
        for place in range(5):
            token = int(ids[row, place])
            wanted = torch.zeros(4) if token == 3 else made.tokens.weight[token] * factor
            torch.testing.assert_close(out[row, place], wanted)
    vectors = torch.randn(1, 2, 4)
    assert torch.equal(made(Inputs(), Placement((), ids, ids), vectors), vectors)
    assert made(Inputs(torch.full((1, 3), 3)), Placement((), ids, ids)).eq(0).all(), "all of it may be masked"


def test_token_dropout_refuses_a_stack_that_hides_the_future() -> None:
    import tfkit

    over = {"model.embedding": {"type": "token_dropout", "mask_id": 3}}
    with pytest.raises(tfkit.RecipeError, match="needs a bidirectional stack"):
        tfkit.load_recipe("gpt2", overrides=over).blueprint()
    model = tfkit.build(tfkit.load_recipe("esm2-8m", overrides={"model.num_layers": 1})).eval()
    with pytest.raises(tfkit.TfkitError, match="'token_dropout' cannot separate packed texts"):
        model(torch.tensor([[5, 6, 7]]), segment_ids=torch.tensor([[0, 0, 1]]))
