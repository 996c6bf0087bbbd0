"""Canvas: draw lines with text characters. Each character is either a pattern of eight braille dots or a symbol."""

from __future__ import annotations

from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bit for each braille dot, by row and column
BLANK = 0x2800
DASHES = ((1, 0), (4, 3), (1, 2), (6, 2))  # lengths of dashes and gaps in dots, for each line style


class Canvas:
    """Draw lines between points with coordinates from 0 to 1, where y increases upwards.

    With `braille=False`, each cell shows a single symbol. A cell has the ink of the last line or mark that was drawn in it.
    An ink is any string, such as a rich style.

    >>> canvas = Canvas(4, 2)
    >>> canvas.line([0, 0.5, 1], [0, 1, 0], ink="red")
    >>> ["".join(character for character, _ in row) for row in canvas.rows()]
    [' ⡰⢣ ', '⡰⠁ ⢣']
    """

    def __init__(self, columns: int, rows: int, *, braille: bool = True) -> None:
        self._wide, self._high = (2, 4) if braille else (1, 1)
        self._columns, self._rows = columns, rows
        self._bits: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], str] = {}
        self._inks: dict[tuple[int, int], str] = {}

    def line(self, xs: Sequence[float], ys: Sequence[float], *, ink: str, style: int = 0, symbol: str = "*") -> None:
        """Draw a line through points. NaN leaves a gap, and a single point is drawn as a dot."""
        on, off = DASHES[style % len(DASHES)] if self._wide > 1 else (1, 0)
        before: tuple[int, int] | None = None
        count = 0
        for x, y in zip(xs, ys, strict=True):
            if not (0 <= x <= 1 and 0 <= y <= 1):
                before = None
                continue
            column, row = self._place(x, y)
            left, top = before or (column, row)
            length = max(abs(column - left), abs(row - top))
            for dot in range(1 if before and length else 0, length + 1):
                if count % (on + off) < on or before is None:
                    fraction = dot / length if length else 0
                    self._dot(round(left + fraction * (column - left)), round(top + fraction * (row - top)), ink, symbol)
                count += bool(length)
            before = column, row

    def mark(self, x: float, y: float, symbol: str, ink: str) -> None:
        """Draw a symbol at a point, on top of everything else."""
        column, row = self._place(x, y)
        cell = column // self._wide, row // self._high
        self._marks[cell], self._inks[cell] = symbol, ink

    def row_of(self, y: float) -> int:
        """Return the row that contains a y coordinate, counting from the top."""
        return self._place(0, y)[1] // self._high

    def rows(self) -> list[list[tuple[str, str]]]:
        """Return the rows from top to bottom. Each row is a list of (character, ink) pairs."""
        return [[self._cell((column, row)) for column in range(self._columns)] for row in range(self._rows)]

    def _place(self, x: float, y: float) -> tuple[int, int]:
        wide, high = self._columns * self._wide - 1, self._rows * self._high - 1
        return round(min(max(x, 0), 1) * wide), round((1 - min(max(y, 0), 1)) * high)

    def _dot(self, column: int, row: int, ink: str, symbol: str) -> None:
        cell = column // self._wide, row // self._high
        if cell in self._marks and self._wide > 1:
            return
        self._inks[cell] = ink
        if self._wide > 1:
            self._bits[cell] = self._bits.get(cell, 0) | DOTS[row % self._high][column % self._wide]
        else:
            self._marks[cell] = symbol

    def _cell(self, cell: tuple[int, int]) -> tuple[str, str]:
        bits = self._bits.get(cell, 0)  # an empty cell is a space: some fonts draw the blank braille character as circles
        return self._marks.get(cell) or (chr(BLANK + bits) if bits else " "), self._inks.get(cell, "")
