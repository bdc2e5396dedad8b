"""The table of training times says what was measured: ratios within a round, and who took what."""

from benchmarks.serving.report import with_table
from benchmarks.training_time import TABLES, Used, table_head, table_row


def test_ratios_are_within_a_round_and_memory_is_a_median():
    used = {
        "scikit-learn": [Used(1, 100), Used(10, 110), Used(2, 120)],
        "dpserve": [Used(3, 1000), Used(20, 1200), Used(2, 1100)],
    }
    assert table_row("1,000 x 30", used) == "| 1,000 x 30 | 2.00, 110 | 2.00, 1,100 |\n"


def test_a_line_has_a_cell_for_each_contender():
    used = {name: [Used(1, 100)] for name in ("scikit-learn", *TABLES)}
    columns, dashes, row = (line.count("|") for line in (table_head(TABLES) + table_row("1 x 1", used)).splitlines())
    assert columns == dashes == row


def test_a_page_gets_a_table_where_its_name_stands():
    page = "<!-- training records -->\nold\n<!-- end -->\n<!-- training images -->\nold\n<!-- end -->\n"
    assert with_table(page, "training images", "new\n") == page.replace("images -->\nold", "images -->\nnew")
