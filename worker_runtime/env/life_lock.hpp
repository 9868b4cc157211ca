#pragma once

#include <cstdint>

#include "worker_runtime/contract/worker_page.hpp"

/// How a worker lets its agent know at once that it dies: it holds a robust mutex in the page that
/// it shares with the agent. The kernel marks the mutex when its holder dies and wakes the agent,
/// before it takes down the worker's memory, which may take seconds. Writing a core comes before
/// even that, so a signal that does so is told by a handler first.
///
/// Nothing here allocates, throws or needs the C++ library: ddprun-preload.so is made of it too.
namespace ddprun::worker {

/// A page that stays mapped for as long as this process lives.
struct LastingPage {
    WorkerPageHeader* header = nullptr;  ///< null: there is none
    WorkerPageSlot* slot = nullptr;      ///< this worker's
};

/// Null if at `path` there is no page of a known version that has a slot for `local_rank`.
[[nodiscard]] LastingPage map_lasting_page(const char* path, std::uint32_t local_rank);

/// Takes the lock of this process's slot, and has those signals told that write a core and have
/// their default effect now: a handler reports the signal, and then lets it have that effect.
/// False, and nothing is changed, if the lock is held: by an earlier call, or by the worker whose
/// descendant this is.
///
/// Call it on the thread that runs main(): the lock is its thread's. Should that thread end before
/// the process does, the agent sees that the process lives, and learns of its death as it does of
/// those without all this.
bool hold_life_lock(const LastingPage& page);

/// Wakes the agent, which looks for news in the page. Async-signal-safe; any thread.
void ring_bell(WorkerPageHeader* header);

}  // namespace ddprun::worker
