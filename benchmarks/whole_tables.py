"""Prints the whole of a table of which a page in docs/benchmarks shows the main rows and columns.

Usage: python -m benchmarks.whole_tables NAME

NAME is a paper (andes, econo, qlm, qos, sa), which has every figure of the paper with the command that makes ours,
or a table of a page (PAGE.NAME, as the comment before the table on the page says). An unknown name lists all.
"""

from benchmarks.arguments import parser_for
from benchmarks.pages.markdown import frame_table
from benchmarks.pages.papers import PAPERS, paper_table
from benchmarks.pages.tables import WHOLE


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("name", choices=[*PAPERS, *sorted(WHOLE)], help="of a paper or of a table")
    name = parser.parse_args().name
    print(paper_table(name) if name in PAPERS else frame_table(WHOLE[name]()), end="")


if __name__ == "__main__":
    main()
