"""Pictures as SVG that people can read: boxes, texts, lines, for light and for dark readers."""

from xml.sax.saxutils import escape

from made_files import Unreadable

LIGHT = {"paper": "#ffffff", "ground": "#f3f5f5", "ink": "#1b2426", "soft": "#526063",
         "line": "#c3cccc", "own": "#1f7d75", "program": "#3f7fbf", "again": "#90a0a2",
         "warn": "#b0641c"}
DARK = {"paper": "#182022", "ground": "#222c2f", "ink": "#e5ecec", "soft": "#a5b3b5",
        "line": "#46555a", "own": "#4fb8ad", "program": "#74aee8", "again": "#6d7a80",
        "warn": "#edb052"}
# Class, the colour that fills it, the colour of its line, and what else is said of it.
CLASSES = (
    ("paper", "paper", "line", ""),
    ("box", "ground", "line", ""),
    ("chip", "paper", "line", ""),
    ("frame", None, "line", "stroke-dasharray: 2 4; stroke-width: 1.5"),
    ("grid", None, "line", "stroke-width: 1"),
    ("own", "own", None, ""),
    ("program", "program", None, ""),
    ("again", "again", None, ""),
    ("mark", None, "soft", "stroke-dasharray: 3 3"),
    ("way", None, "own", "stroke-width: 1.7"),
    ("proved", None, "own", "stroke-width: 2.4"),
    ("plain", None, "program", "stroke-width: 1.7"),
    ("unix", None, "warn", "stroke-width: 1.7; stroke-dasharray: 7 4"),
    ("inside", None, "soft", "stroke-width: 1.7; stroke-dasharray: 2 3"))
HEADS = {"way": "own", "proved": "own", "plain": "program", "unix": "warn", "inside": "soft"}
# Class of a text, the colour, the size, what else is said of it, and a letter's mean width by size.
TEXTS = {"title": ("ink", 16, "font-weight: 650", 0.58),
         "name": ("ink", 14, "font-weight: 650", 0.6),
         "": ("ink", 13, "", 0.55), "soft": ("soft", 12, "", 0.54),
         "figure": ("soft", 12, "stroke-width: 4px; paint-order: stroke", 0.54),
         "code": ("ink", 12, "font-family: ui-monospace, monospace", 0.61)}
ROUND = 8  # a path's corners


def number(value):
    return f"{value:.1f}".removesuffix(".0")


def style():
    rules = ["text { font-family: system-ui, sans-serif; }", "path, line { fill: none; }"]
    for name, (_, size, more, _) in TEXTS.items():
        rules.append(f"{'.' + name if name else 'text'} {{ font-size: {size}px; {more}".rstrip()
                     + " }")
    colours = {scheme: [] for scheme in ("light", "dark")}
    for scheme, of in (("light", LIGHT), ("dark", DARK)):
        for name, (colour, *_) in TEXTS.items():
            halo = f" stroke: {of['paper']};" if name == "figure" else ""
            colours[scheme].append(f"{'.' + name if name else 'text'} {{ fill: {of[colour]};"
                                   f"{halo} }}")
        for name, fill, line, more in CLASSES:
            said = [f"fill: {of[fill]}"] if fill else ["fill: none"]
            said += [f"stroke: {of[line]}"] if line else []
            said += [more] if more and scheme == "light" else []
            colours[scheme].append(f".{name} {{ {'; '.join(said)}; }}")
        colours[scheme] += [f".head-{name} {{ fill: {of[colour]}; }}"
                            for name, colour in HEADS.items()]
    return "\n".join(["<style>", *rules, *colours["light"],
                      "@media (prefers-color-scheme: dark) {",
                      *("  " + rule for rule in colours["dark"]), "}", "</style>"])


class Picture:
    """A card on which things are drawn, one after the other. A text that does not fit, or that
    meets another text, is an error."""

    def __init__(self, width, height, title, description):
        self.width, self.height = width, height
        self.title, self.description = title, description
        self.lines, self.heads, self.texts = [], {}, []

    def rect(self, x, y, width, height, kind, corner=6):
        self.lines.append(f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" '
                          f'width="{number(width)}" height="{number(height)}" rx="{corner}"/>')

    def text(self, x, y, words, kind="", anchor="start", room=None):
        """`y`: of the line on which the letters stand. `room`: the width that there is."""
        _, size, _, letter = TEXTS[kind]
        wide = len(words) * size * letter
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        if wide > (room or self.width) or left < 0 or left + wide > self.width:
            raise Unreadable(f"`{words}` has no room in `{self.title}`")
        for there, *of_there in self.texts:
            if (left < of_there[1] and of_there[0] < left + wide
                    and y - size < of_there[3] and of_there[2] < y):
                raise Unreadable(f"`{words}` meets `{there}` in `{self.title}`")
        self.texts.append((words, left, left + wide, y - size, y))
        named = f' class="{kind}"' if kind else ""
        placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.lines.append(f'<text{named} x="{number(x)}" y="{number(y)}"{placed}>'
                          f"{escape(words)}</text>")

    def box(self, x, y, width, height, name, *rest, kind="box"):
        """A box with its name, and a line of text for each of `rest`, from the top."""
        self.rect(x, y, width, height, kind)
        self.text(x + width / 2, y + 24, name, "name", "middle", width - 8)
        for line, words in enumerate(rest):
            self.text(x + width / 2, y + 43 + 17 * line, words, "soft", "middle", width - 8)

    def chip(self, x, y, width, words):
        self.rect(x, y, width, 22, "chip", 11)
        self.text(x + width / 2, y + 15.5, words, "code", "middle", width - 8)

    def line(self, x, y, x2, y2, kind):
        self.lines.append(f'<line class="{kind}" x1="{number(x)}" y1="{number(y)}" '
                          f'x2="{number(x2)}" y2="{number(y2)}"/>')

    def way(self, *points, kind="way", ends="forth"):
        """An arrow through the points, with round corners. `ends`: forth, both, or none."""
        parts = [f"M {number(points[0][0])} {number(points[0][1])}"]
        for before, (x, y), after in zip(points, points[1:], points[2:]):
            near = [self.towards((x, y), other) for other in (before, after)]
            parts.append(f"L {number(near[0][0])} {number(near[0][1])} Q {number(x)} {number(y)} "
                         f"{number(near[1][0])} {number(near[1][1])}")
        parts.append(f"L {number(points[-1][0])} {number(points[-1][1])}")
        self.heads[kind] = None
        marks = {"forth": ("end",), "both": ("start", "end"), "none": ()}[ends]
        marked = "".join(f' marker-{end}="url(#head-{kind})"' for end in marks)
        self.lines.append(f'<path class="{kind}" d="{" ".join(parts)}"{marked}/>')

    @staticmethod
    def towards(point, other):
        """The place on the way from a corner to another point at which its rounding ends."""
        away = [other[i] - point[i] for i in range(2)]
        length = (away[0] ** 2 + away[1] ** 2) ** 0.5
        share = min(ROUND, length / 2) / length
        return [point[i] + away[i] * share for i in range(2)]

    def document(self):
        heads = [f'<marker id="head-{kind}" viewBox="0 0 10 10" refX="9" refY="5" '
                 'markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" '
                 f'orient="auto-start-reverse"><path class="head-{kind}" d="M 0 1 L 10 5 L 0 9 z"/>'
                 "</marker>" for kind in self.heads]
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            'aria-labelledby="title desc">',
            "<!-- Made by scripts/pictures.py: change that. -->",
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>', style(),
            *(["<defs>", *heads, "</defs>"] if heads else []),
            f'<rect class="paper" x="0.5" y="0.5" width="{self.width - 1}" '
            f'height="{self.height - 1}" rx="10"/>', *self.lines, "</svg>\n"])
