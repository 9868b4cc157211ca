"""The page shared with the agent; its layout is in worker_runtime/contract/README.md."""

from __future__ import annotations

from _thread import allocate_lock
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The number of a member is its index in a view of its type. Later versions only append.
# Made by scripts/page_layout.py --write from worker_page.hpp:
_MAGIC = 0x4547415072706464
_VERSION_MIN = 3
_VERSION_WITH_FIGURES = 4
_VERSION_WITH_CHECKPOINTS = 6
_VERSION_WITH_PACE = 7
_VERSION_WITH_SAVES = 9
_VERSION_WITH_REASON = 10
_SAVE_REASON_BYTES_MAX = 508
_SAVE_PLACE_DISK = 1
_SAVE_PLACE_MEMORY = 2
_SAVE_PLACE_PARTNER = 4
_HEADER_BYTES = 64
_HEADER_MAGIC = 0
_HEADER_VERSION = 2
_HEADER_SLOT_COUNT = 3
_HEADER_GENERATION = 2
_HEADER_PUBLISH_UNTIL_NS = 3
_HEADER_STOP_DEADLINE_NS = 4
_HEADER_STOP_SIGNAL = 10
_HEADER_BELL = 11
_SLOT_BYTES = 128
_SLOT_HAS_RUNTIME = 0
_SLOT_PROGRESS = 1
_FIGURES_BYTES = 64
_FIGURES_MAIN_NS = 0
_FIGURES_GROUP_READY_NS = 1
_FIGURES_RESUMED_NS = 2
_FIGURES_FIRST_STEP_NS = 3
_FIGURES_SAMPLES = 4
_FIGURES_LOSS = 5
_FIGURES_FIRST_STEP = 6
_CHECKPOINTS_BYTES = 1024
_CHECKPOINTS_PATH_BYTES = 0
_CHECKPOINTS_PATH = 4
_PACE_BYTES = 64
_PACE_WRITES = 0
_PACE_STEP = 1
_PACE_STEP_NS = 2
_PACE_WAITED_NS = 3
_PACE_FIRST_WAITED_NS = 4
_PACE_TOTAL_STEPS = 5
_PACE_WAITING_NS = 6
_PACE_CHECKPOINTING_NS = 7
_SAVES_BYTES = 128
_SAVES_WRITES = 0
_SAVES_BEGUN_STEP = 1
_SAVES_BEGUN_NS = 2
_SAVES_SAVED = 3
_SAVES_STEP = 4
_SAVES_SAVED_NS = 5
_SAVES_STATE_BYTES = 6
_SAVES_STALL_NS = 7
_SAVES_TOOK_NS = 8
_SAVES_PLACES = 9
_SAVES_FAILED = 10
_SAVES_FAILED_STEP = 11
_SAVES_FAILED_NS = 12
_SAVES_LATE = 13
_SAVES_IN_TIME = 14
_SAVES_INTERVAL_NS = 15
_REASON_BYTES = 512
_REASON_TEXT_BYTES = 0
_REASON_TEXT = 4
# End of what is made.
_FOR_EVER = (1 << 63) - 1
_CUT = "…".encode()
#: The places of a checkpoint: the disk, the memory of the ranks' own nodes, that of others, too.
ON_DISK, IN_MEMORY, ON_PARTNERS = _SAVE_PLACE_DISK, _SAVE_PLACE_MEMORY, _SAVE_PLACE_PARTNER
# Behind the header, one of each worker; and the version that has added it.
_PARTS = ((_SLOT_BYTES, _VERSION_MIN), (_FIGURES_BYTES, _VERSION_WITH_FIGURES),
          (_CHECKPOINTS_BYTES, _VERSION_WITH_CHECKPOINTS), (_PACE_BYTES, _VERSION_WITH_PACE),
          (_SAVES_BYTES, _VERSION_WITH_SAVES), (_REASON_BYTES, _VERSION_WITH_REASON))


class _SaveUnderWay:
    """A save that has begun, until its stall and its end are known."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.asked_ns = 0  # the last one
        self.step: int | None = None
        self.begun_ns = 0
        self.stall_ns: int | None = None
        self.end: tuple[int, int | None, int, str] | None = None  # when, and as it was told


class Page:
    """This worker's view of its page. Without one, what is told is kept nowhere.

    Numbers are native, aligned, and written by one store each, through a memoryview cast to their
    type: struct writes some of them byte by byte.
    """

    __slots__ = ("_checkpoints", "_figures", "_header_i64", "_header_u32", "_loss", "_pace",
                 "_pace_i64", "_reason", "_ring", "_save", "_saves", "_slot_u32", "_slot_u64",
                 "_teller")

    def __init__(self, header: memoryview | None = None, slot: memoryview | None = None,
                 figures: memoryview | None = None,
                 checkpoints: memoryview | None = None,
                 pace: memoryview | None = None,
                 saves: memoryview | None = None,
                 reason: memoryview | None = None) -> None:
        """Parts of the page, in bytes. A private part stands in for each that is None."""
        if header is None:
            header = memoryview(bytearray(_HEADER_BYTES))
            header.cast("q")[_HEADER_PUBLISH_UNTIL_NS] = _FOR_EVER
        slot = memoryview(bytearray(_SLOT_BYTES)) if slot is None else slot
        figures = memoryview(bytearray(_FIGURES_BYTES)) if figures is None else figures
        self._header_u32 = header.cast("I")
        self._header_i64 = header.cast("q")
        self._slot_u32 = slot.cast("I")
        self._slot_u64 = slot.cast("Q")
        self._figures = figures.cast("Q")
        self._loss = figures.cast("d")
        pace = memoryview(bytearray(_PACE_BYTES)) if pace is None else pace
        self._pace = pace.cast("Q")
        self._pace_i64 = pace.cast("q")
        self._teller: dict[int, object] = {}  # the call that writes the pace
        self._checkpoints = checkpoints
        saves = memoryview(bytearray(_SAVES_BYTES)) if saves is None else saves
        self._saves = saves.cast("Q")
        self._reason = reason
        self._save = _SaveUnderWay()
        self._ring: Callable[[memoryview], None] | None = None

    def publish_until_ns(self) -> int:
        """Until when this worker may publish, on CLOCK_MONOTONIC."""
        return self._header_i64[_HEADER_PUBLISH_UNTIL_NS]

    def stop_deadline_ns(self) -> int:
        """When those who still run are killed, on CLOCK_MONOTONIC; only once a stop is wanted."""
        return self._header_i64[_HEADER_STOP_DEADLINE_NS]

    def is_stop_wanted(self) -> bool:
        """Whether this node's agent asks its workers to save and leave."""
        return self._header_u32[_HEADER_STOP_SIGNAL] != 0

    def tell_that_it_looks(self) -> None:
        """From now on the agent asks through the page where it would have sent a signal."""
        self._slot_u32[_SLOT_HAS_RUNTIME] = 1

    def tell_progress(self, step: int) -> None:
        """step: the last one done."""
        self._slot_u64[_SLOT_PROGRESS] = step

    def tell_main(self, now_ns: int) -> None:
        """now_ns, here and below: on CLOCK_MONOTONIC. Only the first call counts."""
        self._stamp(_FIGURES_MAIN_NS, now_ns)

    def tell_group_ready(self, now_ns: int) -> None:
        """All ranks are connected."""
        self._stamp(_FIGURES_GROUP_READY_NS, now_ns)

    def tell_resumed(self, now_ns: int) -> None:
        """The checkpoint is loaded."""
        self._stamp(_FIGURES_RESUMED_NS, now_ns)

    def tell_first_step(self, step: int, now_ns: int) -> None:
        """The first step of this process is done, number `step`."""
        if self._figures[_FIGURES_FIRST_STEP_NS] == 0:
            self._figures[_FIGURES_FIRST_STEP] = step
        self._stamp(_FIGURES_FIRST_STEP_NS, now_ns)

    def tell_pace(self, step: int, now_ns: int, is_first: bool) -> None:
        """`step` was done at now_ns; what has been waited until then belongs to it.

        Not written if another thread writes a step just now, or if this is a signal's handler and
        has interrupted that: the next one is.
        """
        pace = self._pace
        me = object()
        try:
            if self._teller.setdefault(0, me) is not me:
                return
            waited = pace[_PACE_WAITING_NS] or -1
            # Odd while the others are written, or left so by a killed process of this slot.
            pace[_PACE_WRITES] |= 1
            pace[_PACE_STEP] = step
            pace[_PACE_STEP_NS] = now_ns
            self._pace_i64[_PACE_WAITED_NS] = waited
            if is_first:
                self._pace_i64[_PACE_FIRST_WAITED_NS] = waited
        finally:  # however it ends, as by a handler that raises
            if self._teller.get(0) is me:
                pace[_PACE_WRITES] += pace[_PACE_WRITES] & 1
                del self._teller[0]

    def tell_waited(self, time_ns: int) -> None:
        """This worker has waited so much longer for other ranks."""
        self._pace[_PACE_WAITING_NS] += time_ns

    def tell_checkpointing(self, time_ns: int) -> None:
        """Its training has stood still so much longer for a checkpoint."""
        self._pace[_PACE_CHECKPOINTING_NS] += time_ns

    def tell_total_steps(self, steps: int) -> None:
        """How many steps the run will have in all."""
        self._pace[_PACE_TOTAL_STEPS] = steps

    def tell_samples(self, samples: int) -> None:
        """samples: trained on by this process so far."""
        self._figures[_FIGURES_SAMPLES] = samples

    def tell_loss(self, loss: float) -> None:
        """loss: of the last step that told one."""
        self._loss[_FIGURES_LOSS] = loss

    def tell_checkpoints(self, path: bytes) -> None:
        """path: from the root, of a file, or of a folder with the newest checkpoint in it."""
        part = self._checkpoints
        if part is not None and len(path) <= _CHECKPOINTS_BYTES - _CHECKPOINTS_PATH:
            path_bytes = part[:_CHECKPOINTS_PATH].cast("I")
            path_bytes[_CHECKPOINTS_PATH_BYTES] = 0
            part[_CHECKPOINTS_PATH:_CHECKPOINTS_PATH + len(path)] = path
            path_bytes[_CHECKPOINTS_PATH_BYTES] = len(path)

    def _tell_reason(self, text: str) -> None:
        part = self._reason
        if part is not None:
            reason = text.encode(errors="replace")
            if len(reason) > _SAVE_REASON_BYTES_MAX:
                # Without the first half of a character.
                head = reason[:_SAVE_REASON_BYTES_MAX - len(_CUT)].decode(errors="ignore")
                reason = head.encode() + _CUT
            part[_REASON_TEXT:_REASON_TEXT + len(reason)] = reason
            part[:_REASON_TEXT].cast("I")[_REASON_TEXT_BYTES] = len(reason)

    def ring_with(self, ring: Callable[[memoryview], None]) -> None:
        """ring(bell) raises the word and wakes the agent. Without it the agent reads later."""
        self._ring = ring

    def tell_save_asked(self, is_late: bool) -> None:
        """The training asks for a save; is_late: while the one before is under way.

        This and the next three are of the rank that leads the saves, one at a time. The last two
        come in either order, on any thread. The agent is woken when a save has ended, and when one
        is late.
        """
        save, saves, now_ns = self._save, self._saves, monotonic_ns()
        with save.lock:
            saves[_SAVES_WRITES] |= 1
            saves[_SAVES_LATE] = saves[_SAVES_LATE] + 1 if is_late else 0
            saves[_SAVES_IN_TIME] = 0 if is_late else saves[_SAVES_IN_TIME] + 1
            if save.asked_ns:
                saves[_SAVES_INTERVAL_NS] = now_ns - save.asked_ns
            saves[_SAVES_WRITES] += 1
            save.asked_ns = now_ns
        if is_late:
            self._wake()

    def tell_save_begun(self, step: int) -> None:
        """The save before has ended, and that of `step` begins."""
        save, saves = self._save, self._saves
        with save.lock:
            save.step, save.begun_ns = step, monotonic_ns()
            save.stall_ns = save.end = None
            saves[_SAVES_WRITES] |= 1
            saves[_SAVES_BEGUN_STEP] = step
            saves[_SAVES_BEGUN_NS] = save.begun_ns
            saves[_SAVES_WRITES] += 1

    def tell_save_stalled(self, time_ns: int) -> None:
        """The training goes on, after it has stood still so long."""
        save = self._save
        with save.lock:
            if save.step is not None and save.stall_ns is None:
                save.stall_ns = time_ns
                self._tell_whole_save()

    def tell_save_ended(self, size: int | None, places: int, why: str = "") -> None:
        """size: bytes of the state that all ranks have saved. Without: it failed. places: where it
        is, ON_DISK and others, added. why: it failed; one line."""
        save = self._save
        with save.lock:
            if save.step is not None and save.end is None:
                save.end = (monotonic_ns(), size, places, why)
                self._tell_whole_save()

    def _tell_whole_save(self) -> None:
        save, saves = self._save, self._saves
        if save.step is None or save.stall_ns is None or save.end is None:
            return
        ended_ns, size, places, why = save.end
        saves[_SAVES_WRITES] |= 1
        if size is None:
            saves[_SAVES_FAILED] += 1
            saves[_SAVES_FAILED_STEP] = save.step
            saves[_SAVES_FAILED_NS] = ended_ns
            self._tell_reason(why)
        else:
            saves[_SAVES_SAVED] += 1
            saves[_SAVES_STEP] = save.step
            saves[_SAVES_SAVED_NS] = ended_ns
            saves[_SAVES_STATE_BYTES] = size
            saves[_SAVES_STALL_NS] = save.stall_ns
            saves[_SAVES_TOOK_NS] = ended_ns - save.begun_ns
            saves[_SAVES_PLACES] = places
        saves[_SAVES_WRITES] += 1
        save.step = None
        self._wake()

    def _wake(self) -> None:
        if self._ring is not None:
            self._ring(self._header_u32[_HEADER_BELL:_HEADER_BELL + 1])

    def _stamp(self, which: int, now_ns: int) -> None:
        if self._figures[which] == 0:
            self._figures[which] = now_ns


def open_page(path: str, generation: int, slot: int, slot_count: int) -> Page:
    """Maps the page at `path`, in which this worker is number `slot` of `slot_count`.

    Raises OSError if it cannot be mapped, and ValueError if it is no page of a version that is
    known here, of this generation and number of workers; nothing has been written then.
    """
    import mmap
    import os

    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        least = _HEADER_BYTES + slot_count * _SLOT_BYTES
        if size < least:
            raise ValueError(f"the agent's page {path} has {size} bytes, {slot_count} workers "
                             f"need {least}")
        memory = memoryview(mmap.mmap(file, size))
    finally:
        os.close(file)
    words = memory[:_HEADER_BYTES].cast("I")
    numbers = memory[:_HEADER_BYTES].cast("Q")
    version, workers = words[_HEADER_VERSION], words[_HEADER_SLOT_COUNT]
    page_generation = numbers[_HEADER_GENERATION]
    parts: list[memoryview | None] = [memory[:_HEADER_BYTES]]
    end = _HEADER_BYTES
    for part_bytes, since in _PARTS:
        at = end + slot * part_bytes
        parts.append(memory[at:at + part_bytes] if version >= since else None)
        end += slot_count * part_bytes if version >= since else 0
    if (numbers[_HEADER_MAGIC] != _MAGIC or version < _VERSION_MIN or workers != slot_count or
            page_generation != generation or not 0 <= slot < slot_count or size < end):
        raise ValueError(
            f"the agent's page {path} is of version {version}, generation {page_generation}, "
            f"{workers} workers, {size} bytes; expected version {_VERSION_MIN} or newer, "
            f"generation {generation}, {slot_count} workers")
    return Page(*parts)
