#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/tagged.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/protocol/worker_page.hpp"

namespace ddprun::agent {

/// The agent's end of the page that it shares with the workers of one generation here
/// (rendezvous/protocol/worker_page.hpp). The memory has no name: it is gone with this object and
/// the workers that look at it, however the agent ends. What workers write is never trusted beyond
/// being a number. Any thread; nothing blocks.
class WorkerPage {
public:
    /// Fails, leaving nothing, when the kernel gives no such memory.
    [[nodiscard]] static Result<std::unique_ptr<WorkerPage>> create(Generation generation,
                                                                    int slot_count,
                                                                    Instant publish_until);
    /// For create(): `header` lies at the start of a mapping of `file`.
    WorkerPage(UniqueFd file, rdzv::WorkerPageHeader* header);
    ~WorkerPage();
    WorkerPage(const WorkerPage&) = delete;
    WorkerPage& operator=(const WorkerPage&) = delete;

    /// What a worker opens, while this object lives.
    [[nodiscard]] std::string path() const;

    [[nodiscard]] Generation generation() const { return generation_; }

    /// Workers that look save and leave. Asked again only the deadline changes.
    void ask_to_stop(int signal, Instant deadline);

    /// Workers may publish before `until`: Instant::max() for ever, Instant::min() not at all.
    void allow_publishing(Instant until);

    /// True if this worker looks at the page. One of which this is false after ask_to_stop() may
    /// not have seen it; one that looks later does see it.
    [[nodiscard]] bool has_runtime(LocalRank local_rank) const;

    /// The last step this worker told; none before the first.
    [[nodiscard]] std::optional<std::uint64_t> progress(LocalRank local_rank) const;

private:
    [[nodiscard]] const rdzv::WorkerPageSlot& slot(LocalRank local_rank) const;

    UniqueFd file_;
    rdzv::WorkerPageHeader* header_;
    Generation generation_;  ///< these two are not read back: the memory is not ours alone
    int slot_count_;
};

}  // namespace ddprun::agent
