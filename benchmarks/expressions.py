"""Every regular expression in what is installed, and the input on which a matcher that backtracks takes longest.

Promises: an expression that the source has is found, or the search for them fails; of one without a finding a matcher
that backtracks takes no more than a constant times the length of the input.

The finding (Weideman et al. 2016, "Analyzing matching time behavior of backtracking regular expression matchers using
ambiguity of NFA"): there are two states p and q, and a text w that leads from p to p, from p to q, and from q to q. So
n times w can be split between p and q at n places; a matcher that fails behind it has tried all of them, which takes
time n^2 at least, and if there is no such pair it is linear (Weber and Seidl 1991). A search for an expression within
a text begins with a state that takes every character and stays.

What is not modelled is modelled by something that takes longer: an end of a line or a word, and a condition that looks
ahead, always holds (its own expression must be of bounded length), and a bounded repetition has no bound.
"""

import ast
import importlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

# Python has no public parser of its expressions: this one is what `re` itself calls, in every version that must pass.
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("accounting", "mechanisms", "training", "service", "audit", "dpserve")
SCRIPTS = ROOT / "service" / "page" / "static"
_LITERAL = re.compile(
    r"(?<=[=(,:!&|?;{}\[\n>] |.[=(,:!&|?;{}\[\n>])/(?![*/])"
    r"((?:[^\\/\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/([a-z]*)"
)
"""An expression of JavaScript, where a value may stand."""

WHOLE, START, SEARCH = "fullmatch", "match", "search"
_METHODS = {"fullmatch": WHOLE, "match": START} | dict.fromkeys(
    ("search", "findall", "finditer", "sub", "subn", "split", "compile"), SEARCH
)
_LONG = 2**16
_ALPHABET = frozenset(map(chr, (*range(256), 0x130, 0x131, 0x17F, 0x660, 0x2028, 0x212A, 0x3000, 0x4E2D)))
"""Every character of these expressions is one of these, and one of each class is here."""


@dataclass(frozen=True)
class Expression:
    """An expression. where: the file and the line. flags: as `re` has them. how: of WHOLE, START and SEARCH."""

    where: str
    pattern: str
    flags: int = 0
    how: str = SEARCH


@dataclass
class _State:
    """A place where a character is read. only: after it nothing else is read that it would take (possessive)."""

    takes: frozenset[str]
    follow: Counter[int] = field(default_factory=Counter)
    """Number of ways to each following state."""
    only: bool = False


_CATEGORIES: Mapping[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda each: each.isalnum() or each == "_",
}


def _fold_case(character: str, *, wide: bool) -> str:
    """Return what `re` compares where it ignores case; wide: for all letters, and not for those of ASCII alone."""
    if not wide:
        return character.lower() if character.isascii() else character
    return {"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"}.get(character, character.lower())


class NotUnderstood(ValueError):
    """The expression has what is not modelled here."""


class Automaton:
    """The states of an expression (Glushkov): 0 is before all of it."""

    def __init__(self, expression: Expression) -> None:
        """Raises NotUnderstood."""
        self._states = [_State(frozenset())]
        self._flags = expression.flags
        self._conditional: set[int] = set()
        """After these a condition decides whether anything was found."""
        try:
            parsed = parser.parse(expression.pattern, expression.flags)
        except re.error as error:
            raise NotUnderstood(f"{expression.where}: {error}") from error
        self._flags = parsed.state.flags
        ends = self._sequence(parsed, Counter([0]))
        self.accepting = frozenset() if expression.how == WHOLE else frozenset(ends) - self._conditional
        self.anywhere = None
        if expression.how == SEARCH and not self._begins_at_the_beginning(parsed):
            first = Counter(self._states[0].follow)
            self.anywhere = self._read(_ALPHABET, Counter([0]))
            self._states[self.anywhere].follow.update([*first, self.anywhere])

    def _begins_at_the_beginning(self, parsed: Any) -> bool:
        anchored = bool(parsed) and parsed[0][0] is parser.AT and parsed[0][1] is parser.AT_BEGINNING
        return anchored and not self._flags & re.MULTILINE

    def _read(self, takes: frozenset[str], before: Counter[int]) -> int:
        number = len(self._states)
        self._states.append(_State(takes))
        self._join(before, Counter([number]))
        return number

    def _join(self, before: Counter[int], after: Counter[int]) -> None:
        for each, ways in before.items():
            for number, others in after.items():
                self._states[each].follow[number] += ways * others

    def _sequence(self, items: Any, before: Counter[int]) -> Counter[int]:
        """Add what is read after the states `before`; return those after which it is over, and in how many ways."""
        for operation, argument in items:
            before = self._item(operation, argument, before)
        return before

    def _item(self, operation: Any, argument: Any, before: Counter[int]) -> Counter[int]:
        if operation in (parser.LITERAL, parser.NOT_LITERAL, parser.ANY, parser.IN):
            return Counter([self._read(self._characters(operation, argument), before)])
        if operation is parser.BRANCH:
            return sum((self._sequence(each, before) for each in argument[1]), Counter())
        if operation is parser.SUBPATTERN:
            return self._sequence(argument[3], before)
        if operation in (parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT):
            least, most, repeated = argument
            return self._repetition(operation, least, most, repeated, before)
        if operation in (parser.ASSERT, parser.ASSERT_NOT) and argument[1].getwidth()[1] >= _LONG:
            raise NotUnderstood("a condition of unbounded length")
        if operation in (parser.ASSERT, parser.ASSERT_NOT, parser.AT):
            self._conditional |= set(before)
            return before
        raise NotUnderstood(f"{operation}")

    def _repetition(self, operation: Any, least: int, most: int, repeated: Any, before: Counter[int]) -> Counter[int]:
        outside = len(self._states)  # stands for what comes before
        self._states.append(_State(frozenset()))
        ends = self._sequence(repeated, Counter([outside]))
        empty, firsts = ends.pop(outside, 0), Counter(self._states[outside].follow)
        self._join(before, firsts)
        if most > 1:
            self._join(ends, firsts)
        if operation is parser.POSSESSIVE_REPEAT:
            if len(self._states) != outside + 2 or most is not parser.MAXREPEAT:
                raise NotUnderstood("a possessive repetition of more than one character")
            self._states[outside + 1].only = True
        skipped = empty + (least == 0)
        return ends + Counter({each: ways * skipped for each, ways in before.items()})

    def _characters(self, operation: Any, argument: Any) -> frozenset[str]:
        if operation is parser.ANY:
            return _ALPHABET if self._flags & re.DOTALL else _ALPHABET - {"\n"}
        if operation is parser.LITERAL:
            return self._alike({chr(argument)})
        if operation is parser.NOT_LITERAL:
            return _ALPHABET - self._alike({chr(argument)})
        found: set[str] = set()
        negated = False
        for kind, value in argument:
            if kind is parser.NEGATE:
                negated = True
            elif kind is parser.LITERAL:
                found |= self._alike({chr(value)})
            elif kind is parser.RANGE:
                found |= self._alike({each for each in _ALPHABET if value[0] <= ord(each) <= value[1]})
            elif kind is parser.CATEGORY:
                is_one = _CATEGORIES[str(value).rpartition("_")[2]]
                known = {each for each in _ALPHABET if is_one(each) and (each.isascii() or not self._flags & re.ASCII)}
                found |= _ALPHABET - known if "_NOT_" in str(value) else known
            else:
                raise NotUnderstood(f"{kind}")
        return _ALPHABET - found if negated else frozenset(found)

    def _alike(self, characters: set[str]) -> frozenset[str]:
        if not self._flags & re.IGNORECASE:
            return frozenset(characters)
        wide = not self._flags & re.ASCII
        folded = {_fold_case(each, wide=wide) for each in characters}
        return frozenset(each for each in _ALPHABET | characters if _fold_case(each, wide=wide) in folded)

    @cached_property
    def _edges(self) -> list[dict[int, frozenset[str]]]:
        """For each state, the states that may follow it, and upon which characters."""
        # One of those characters that no state tells apart stands for all of them.
        alike = {tuple(each in state.takes for state in self._states): each for each in sorted(_ALPHABET, reverse=True)}
        standing = frozenset(alike.values())
        found = []
        for number, state in enumerate(self._states):
            to = {}
            for each in state.follow:
                takes = self._states[each].takes & standing
                to[each] = takes - state.takes if state.only and each != number else takes
            found.append({each: takes for each, takes in to.items() if takes})
        return found

    @cached_property
    def _loops(self) -> list[int]:
        reached = [self._reach(number) for number in range(len(self._states))]
        return [number for number, others in enumerate(reached) if number in others]

    def _reach(self, number: int) -> set[int]:
        found: set[int] = set()
        todo = [number]
        while todo:
            for each in self._edges[todo.pop()]:
                if each not in found:
                    found.add(each)
                    todo.append(each)
        return found

    def _path(self, starts: Sequence[int], ends: Sequence[int]) -> str | None:
        """Return a text that leads from each start to its end, all at once; the shortest, and not empty."""
        first = tuple(starts)
        seen = {first}
        todo = deque([(first, "")])
        while todo:
            places, text = todo.popleft()
            options: list[tuple[tuple[int, ...], frozenset[str]]] = [((), _ALPHABET)]
            for place in places:
                options = [
                    ((*before, to), both)
                    for before, takes in options
                    for to, upon in self._edges[place].items()
                    if (both := takes & upon)
                ]
            for after, takes in options:
                if after == tuple(ends):
                    return text + min(takes)
                if after not in seen:
                    seen.add(after)
                    todo.append((after, text + min(takes)))
        return None

    def hostile(self) -> tuple[str, str] | None:
        """Return a beginning, and what to repeat behind it for a time that grows faster; None if there is none."""
        for p in self._loops:
            for q, ways in self._states[p].follow.items():
                if ways > 1 and q in self._edges[p] and p in self._reach(q) | {q}:
                    back = "" if p == q else self._path((q,), (p,)) or ""
                    return self._path((0,), (p,)) or "", min(self._edges[p][q]) + back
            behind = self._reach(p)
            for q in self._loops:
                # A search that comes to where it may end has found something.
                if q == p or q not in behind or (p == self.anywhere and q in self.accepting):
                    continue
                repeated = self._path((p, p, q), (p, q, q))
                if repeated is not None:
                    return self._path((0,), (p,)) or "", repeated
        return None

    def longest_ways(self) -> Iterator[tuple[str, str]]:
        """Yield for each repetition a beginning that leads there, and what to repeat."""
        for loop in self._loops:
            if (before := self._path((0,), (loop,))) is not None and (
                again := self._path((loop,), (loop,))
            ) is not None:
                yield before, again


def expressions() -> list[Expression]:
    """Return every expression that the packages' source has. Raises NotUnderstood for one that cannot be read there."""
    scripts = [each for path in sorted(SCRIPTS.glob("*.js")) for each in _in_script(path)]
    return [*(each for path in _trees() for each in _in_file(path)), *scripts]


def _in_script(path: Path) -> Iterator[Expression]:
    text, where = path.read_text("utf-8"), str(path.relative_to(ROOT))
    if "RegExp" in text:
        raise NotUnderstood(f"{where}: write the expression as a literal")
    for found in _LITERAL.finditer(text):
        flags = (re.IGNORECASE if "i" in found[2] else 0) | (re.MULTILINE if "m" in found[2] else 0) | re.ASCII
        yield Expression(f"{where}:{text.count(chr(10), 0, found.start()) + 1}", found[1].replace("\\/", "/"), flags)


def _in_file(path: Path) -> Iterator[Expression]:
    where = str(path.relative_to(ROOT))
    tree = _trees()[path]
    _refuse_hidden(tree, where)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        place = f"{where}:{node.lineno}"
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "re":
            if called.attr in ("escape", "error", "purge"):
                continue
            flags = next((each.value for each in node.keywords if each.arg == "flags"), None)
            at = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(called.attr, 2)
            flags = node.args[at] if flags is None and len(node.args) > at else flags
            pattern = _value(node.args[0], path, place)
            how = _METHODS[called.attr] if called.attr != "compile" else _use(node, path)
            pattern = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
            yield Expression(place, pattern, 0 if flags is None else int(_value(flags, path, place)), how)
        for keyword in node.keywords:
            if keyword.arg in ("pattern", "regex") and not isinstance(keyword.value, ast.Constant | ast.JoinedStr):
                raise NotUnderstood(f"{place}: {keyword.arg} is not written out")
            if keyword.arg == "pattern":
                yield Expression(place, _value(keyword.value, path, place))


def _refuse_hidden(tree: ast.AST, where: str) -> None:
    """Raise NotUnderstood for expressions under another name than `re`."""
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        hidden = isinstance(node, ast.ImportFrom) and node.module in ("re", "regex", "re2", "fnmatch")
        renamed = isinstance(node, ast.Import) and any(each.name == "re" and each.asname for each in node.names)
        if hidden or renamed or {"regex", "re2", "fnmatch"} & set(names):
            raise NotUnderstood(f"{where}: import re as it is")


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def _uses(path: Path) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return how often each attribute of each name is taken in a file, and how often each name is read at all."""
    attributes: Counter[tuple[str, str]] = Counter()
    names: Counter[str] = Counter()
    for node in ast.walk(_trees()[path]):
        if isinstance(node, ast.Attribute):
            names[node.attr] += 1  # of a module, maybe
            if isinstance(node.value, ast.Name):
                attributes[node.value.id, node.attr] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names[node.id] += 1
        elif isinstance(node, ast.ImportFrom):
            names.update(each.name for each in node.names if each.asname)
    return attributes, names


def _use(call: ast.Call, path: Path) -> str:
    """Return how a compiled expression is used, by its name: the strictest, if that cannot be told."""
    for node in ast.walk(_trees()[path]):
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            uses = [_uses(each) for each in ([path] if name.startswith("_") else _trees())]
            methods = Counter[str]()
            for attributes, _ in uses:
                for (of, method), count in attributes.items():
                    methods[method] += count if of == name else 0
            used = {method for method, count in methods.items() if count}
            if used <= {"fullmatch", "match", "pattern"} and sum(names[name] for _, names in uses) == methods.total():
                return START if "match" in used else WHOLE
    return SEARCH


def _value(node: ast.expr, path: Path, place: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    code = compile(ast.Expression(node), place, "eval")
    with suppress(NameError):
        return eval(code, {"re": re})
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    try:
        return eval(code, dict(vars(module)))
    except Exception as error:
        raise NotUnderstood(f"{place}: write the expression where it can be read without calling anything") from error
