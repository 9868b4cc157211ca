#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/comm/timed_group.hpp"

namespace ddprun {

namespace worker {

/// True for a failure of this rank's device or memory, say of a kernel that ran before: no argument
/// is at fault, and the others wait for this rank.
[[nodiscard]] bool is_device_failure(const std::exception& failure);

/// Throws unless `other` is another rank of `world_size`.
void require_other_rank(int other, int rank, int world_size);

}  // namespace worker

/// The common part of a group's copies, and of its operations that are pending. Used by one thread
/// at a time, but for what `loss` and `watch` allow.
struct ProcessGroup::State {
    c10::intrusive_ptr<c10d::Store> store;
    worker::BackendPlace at;
    c10::intrusive_ptr<worker::TimedGroup> group;
    c10::intrusive_ptr<c10d::Backend> gloo;
    std::shared_ptr<worker::Loss> loss = std::make_shared<worker::Loss>();
    std::shared_ptr<worker::PeerWatch> watch;
    std::vector<torch::Device> devices{torch::kCPU};  ///< see ProcessGroup::devices()
    worker::StopBallot stop_ballot;
    std::shared_ptr<worker::BackgroundSaves> background_saves =
        std::make_shared<worker::BackgroundSaves>();
    std::shared_ptr<std::atomic<std::int64_t>> waited_ns =
        std::make_shared<std::atomic<std::int64_t>>(0);
    std::optional<Error> broken;
    bool is_finished = false;
    std::vector<std::shared_ptr<State>> parts;  ///< sub-groups that may not have ended
    int parts_made = 0;

    /// Connects to all others over Gloo; throws what c10d throws, with nothing left to cut: `group`
    /// is set after all else that cut() and end() need. A rank that `whole` loses, of which the
    /// group is to be a part, ends the connecting, too.
    static std::shared_ptr<State> connect(const c10::intrusive_ptr<c10d::Store>& store,
                                          const worker::BackendPlace& at, const std::string& name,
                                          worker::Loss* whole = nullptr);
    /// Cuts a group that has not ended in order. It may have a collective that never will, for
    /// which Gloo's destructor would wait: c10d's group stays until the process ends.
    ~State();

    /// Connects for tensors on this rank's GPUs, if it has any; throws what c10d throws.
    void use_gpus();

    /// Waits for what collective_async() has begun.
    [[nodiscard]] Result<void> wait_for(const std::string& what,
                                        const c10::intrusive_ptr<c10d::Work>& work,
                                        Pending<void>::Bound bound);
    /// An Error that names `what` if the group is broken: it has been, or a rank is lost now.
    [[nodiscard]] Result<void> check(const std::string& what);
    /// Breaks the group because of an exception: of this rank's device or memory, or of a peer.
    Error broken_by(const std::string& what, const std::exception& failure);

    /// Computes the result of what the ranks have done together. A device that fails breaks the
    /// group; any other exception is the caller's mistake.
    template <typename Compute>
    auto compute(const std::string& what, const Compute& compute) -> Result<decltype(compute())> {
        try {
            const torch::NoGradGuard no_grad;
            if constexpr (std::is_void_v<decltype(compute())>) {
                compute();
                return {};
            } else {
                return compute();
            }
        } catch (const std::exception& failure) {
            if (worker::is_device_failure(failure)) {
                return broken_by(what, failure);
            }
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{}: rank {} of {} cannot write the tensor: {}", what, at.rank,
                                     at.world_size, worker::first_line(failure))};
        }
    }

    /// Expects connections to end: no rank closes a connection before all ranks have called this.
    void stand_down();
    void end();

private:
    /// Gloo ends a collective that is late by itself.
    [[nodiscard]] std::unique_ptr<worker::WorkDeadlines> deadlines_for_gpu() const;
    /// The GPU's engine is aborted by `loss`.
    void cut(const std::string& why) { cut(*gloo, *watch, why); }
    static void cut(c10d::Backend& gloo, worker::PeerWatch& watch, const std::string& why);
};

}  // namespace ddprun
