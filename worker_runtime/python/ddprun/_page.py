"""The page shared with the agent; its layout is in worker_runtime/contract/README.md."""

from __future__ import annotations

_MAGIC = 0x4547415072706464
_VERSION_MIN = 3
_VERSION_WITH_FIGURES = 4  # later versions only append
_VERSION_WITH_CHECKPOINTS = 6
_VERSION_WITH_PACE = 7
_HEADER_BYTES = 64
_SLOT_BYTES = 128
_FIGURES_BYTES = 64
_CHECKPOINTS_BYTES = 1024
_PACE_BYTES = 64
_FOR_EVER = (1 << 63) - 1
# Behind the header, one of each worker; and the version that has added it.
_PARTS = ((_SLOT_BYTES, _VERSION_MIN), (_FIGURES_BYTES, _VERSION_WITH_FIGURES),
          (_CHECKPOINTS_BYTES, _VERSION_WITH_CHECKPOINTS), (_PACE_BYTES, _VERSION_WITH_PACE))


class Page:
    """This worker's view of its page. Without one, what is told is kept by nobody.

    Numbers are native, aligned, and written by one store each, through a memoryview cast to their
    type: struct writes some of them byte by byte.
    """

    __slots__ = ("_checkpoints", "_figures", "_header_i64", "_header_u32", "_loss", "_pace",
                 "_pace_i64", "_slot_u32", "_slot_u64", "_teller")

    def __init__(self, header: memoryview | None = None, slot: memoryview | None = None,
                 figures: memoryview | None = None,
                 checkpoints: memoryview | None = None,
                 pace: memoryview | None = None) -> None:
        """Parts of the page, in bytes. None: there is no such part, a private one is used."""
        if header is None:
            header = memoryview(bytearray(_HEADER_BYTES))
            header.cast("q")[3] = _FOR_EVER
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
        self._teller: dict[int, object] = {}  # whoever writes the pace
        self._checkpoints = checkpoints

    def publish_until_ns(self) -> int:
        """Until when this worker may publish, on CLOCK_MONOTONIC."""
        return self._header_i64[3]

    def stop_deadline_ns(self) -> int:
        """When those who still run are killed, on CLOCK_MONOTONIC; only once a stop is wanted."""
        return self._header_i64[4]

    def is_stop_wanted(self) -> bool:
        """Whether this node's agent asks its workers to save and leave."""
        return self._header_u32[10] != 0

    def tell_that_it_looks(self) -> None:
        """From now on the agent asks through the page where it would have sent a signal."""
        self._slot_u32[0] = 1

    def tell_progress(self, step: int) -> None:
        """step: the last one done."""
        self._slot_u64[1] = step

    def tell_main(self, now_ns: int) -> None:
        """now_ns, here and below: on CLOCK_MONOTONIC. Only the first call counts."""
        self._stamp(0, now_ns)

    def tell_group_ready(self, now_ns: int) -> None:
        """All ranks are connected."""
        self._stamp(1, now_ns)

    def tell_resumed(self, now_ns: int) -> None:
        """The checkpoint is loaded."""
        self._stamp(2, now_ns)

    def tell_first_step(self, step: int, now_ns: int) -> None:
        """The first step of this process is done, number `step`."""
        if self._figures[3] == 0:
            self._figures[6] = step
        self._stamp(3, now_ns)

    def tell_pace(self, step: int, now_ns: int, is_first: bool) -> None:
        """`step` was done at now_ns; what has been waited until then belongs to it.

        Not told if another thread tells one just now, or if this is a signal's handler and has
        interrupted that: the next one is.
        """
        pace = self._pace
        me = object()
        try:
            if self._teller.setdefault(0, me) is not me:
                return
            waited = pace[6] or -1
            pace[0] |= 1  # odd: being written, or left so by a process of this slot that was killed
            pace[1] = step
            pace[2] = now_ns
            self._pace_i64[3] = waited
            if is_first:
                self._pace_i64[4] = waited
        finally:  # however it ends, as by a handler that raises
            if self._teller.get(0) is me:
                pace[0] += pace[0] & 1
                del self._teller[0]

    def tell_waited(self, time_ns: int) -> None:
        """This worker has waited so much longer for other ranks."""
        self._pace[6] += time_ns

    def tell_checkpointing(self, time_ns: int) -> None:
        """Its training has stood still so much longer for a checkpoint."""
        self._pace[7] += time_ns

    def tell_total_steps(self, steps: int) -> None:
        """How many steps the run will have in all."""
        self._pace[5] = steps

    def tell_samples(self, samples: int) -> None:
        """samples: trained on by this process so far."""
        self._figures[4] = samples

    def tell_loss(self, loss: float) -> None:
        """loss: of the last step that told one."""
        self._loss[5] = loss

    def tell_checkpoints(self, path: bytes) -> None:
        """path: from the root, of a file, or of a folder with the newest checkpoint in it."""
        part = self._checkpoints
        if part is not None and len(path) <= _CHECKPOINTS_BYTES - 4:
            path_bytes = part[:4].cast("I")
            path_bytes[0] = 0
            part[4:4 + len(path)] = path
            path_bytes[0] = len(path)

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
    version = words[2]
    parts: list[memoryview | None] = [memory[:_HEADER_BYTES]]
    end = _HEADER_BYTES
    for part_bytes, since in _PARTS:
        at = end + slot * part_bytes
        parts.append(memory[at:at + part_bytes] if version >= since else None)
        end += slot_count * part_bytes if version >= since else 0
    if (numbers[0] != _MAGIC or version < _VERSION_MIN or words[3] != slot_count or
            numbers[2] != generation or not 0 <= slot < slot_count or size < end):
        raise ValueError(
            f"the agent's page {path} is of version {version}, generation {numbers[2]}, "
            f"{words[3]} workers, {size} bytes; expected version {_VERSION_MIN} or newer, "
            f"generation {generation}, {slot_count} workers")
    return Page(*parts)
