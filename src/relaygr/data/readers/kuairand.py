"""Read KuaiRand interaction logs: any number of `log_standard_*.csv` and `log_random_*.csv` as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaygr.data.readers.delimited import check_header, csv_records, first_line
from relaygr.data.readers.fields import read_flag, read_integer, time_reader
from relaygr.data.readers.interface import Terms
from relaygr.data.readers.rows import Flag, Layout
from relaygr.data.readers.text import Lines, Records, TextReader

# Columns and the names of their bits. `is_rand` says why a video was shown and is no act of the user.
_FLAGS = (
    ("is_click", "click"),
    ("is_like", "like"),
    ("is_follow", "follow"),
    ("is_comment", "comment"),
    ("is_forward", "forward"),
    ("is_hate", "hate"),
    ("long_view", "long_view"),
    ("is_profile_enter", "profile_enter"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KuaiRandReader(TextReader):
    """A row is a video that was shown, and bit 0 says no more; what the user did is in the other bits."""

    terms: ClassVar[Terms | None] = Terms(
        source=(
            "KuaiRand. Chongming Gao, Shijun Li, Yuan Zhang, Jiawei Chen, Biao Li, Wenqiang Lei, Peng Jiang "
            "and Xiangnan He. 2022. KuaiRand: An Unbiased Sequential Recommendation Dataset with Randomly "
            "Exposed Videos. CIKM '22, 3953-3957. https://doi.org/10.1145/3511808.3557624"
        ),
        licence=(
            "CC BY-SA 4.0: name the source and say what was changed; what is made from it may be passed on "
            "under the same licence only."
        ),
    )

    def layout(self) -> Layout:
        flags = tuple(Flag(column, action, read_flag) for column, action in _FLAGS)
        return Layout("user_id", "video_id", "time_ms", read_integer, time_reader("ms"), flags)

    def begin(self, lines: Lines, layout: Layout) -> tuple[Sequence[str], Records]:
        header, records = csv_records(lines, first_line(lines))
        check_header(lines, header, layout.columns)
        return header, records
