import pytest

from harmofl.errors import UsageError
from harmofl.experiments.kept_blocks import Block, anchor, read_blocks

TEXT = """# Title
<!-- summary --> old <!-- end -->
## Here
<!-- table: tiny; figures: sites, drift -->
old
<!-- end -->
after"""


def test_blocks_come_with_the_text_before_them_and_the_heading_above() -> None:
    assert list(read_blocks(TEXT)) == [
        (Block("<!-- summary -->", "summary", "", (), "Title"), "# Title\n"),
        (
            Block("<!-- table: tiny; figures: sites, drift -->", "table", "tiny", ("sites", "drift"), "Here"),
            "\n## Here\n",
        ),
        (None, "\nafter"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: tiny; figures: sight -->\n<!-- end -->", r"unknown figure 'sight'.*sites"),
        ("<!-- table: tiny -->\n", "<!-- table: tiny --> has no <!-- end -->"),
        ("<!-- table: tiny -->\n<!-- summary -->\n<!-- end -->\n", "stands inside another block"),
    ],
)
def test_wrong_marks_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(read_blocks(text))


def test_anchors_are_those_of_the_headings() -> None:
    assert (
        anchor("Real nuclei tiles: which part does it (no, really)?")
        == "real-nuclei-tiles-which-part-does-it-no-really"
    )
