#include <csignal>
#include <ctime>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker_runtime/torch/backends.hpp"

namespace ddprun::worker {

namespace {

class BreakableGloo final : public c10d::ProcessGroupGloo {
public:
    using ProcessGroupGloo::ProcessGroupGloo;

    // Whoever waits for us learns at once that we are out, also if it is not the dead one that it
    // waits for; and our own pending collectives end, but those that were being written.
    void abort() override {
        for (const std::shared_ptr<gloo::Context>& context : contexts_) {
            context->closeConnections();
        }
    }
};

/// SIGPIPE blocked for this thread while it lives, and for threads that begin meanwhile for good:
/// Gloo writes to connections whose peer may be dead, and learns of it by the error as well.
class SigpipeBlocked {
public:
    SigpipeBlocked() {
        sigemptyset(&sigpipe_);
        sigaddset(&sigpipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
    }
    ~SigpipeBlocked() {
        if (sigismember(&before_, SIGPIPE) == 0) {
            // One that this thread has earned meanwhile must not end the process now.
            const timespec now{};
            while (sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {}
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    SigpipeBlocked(const SigpipeBlocked&) = delete;
    SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

private:
    sigset_t sigpipe_{};
    sigset_t before_{};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendPlace& place) {
    const SigpipeBlocked blocked;
    auto options = c10d::ProcessGroupGloo::Options::create(place.join_timeout);
    options->devices.push_back(
        place.local_address.empty()
            ? c10d::ProcessGroupGloo::createDefaultDevice()
            : c10d::ProcessGroupGloo::createDeviceForHostname(place.local_address));
    auto backend =
        c10::make_intrusive<BreakableGloo>(store, place.rank, place.world_size, std::move(options));
    backend->setTimeout(place.timeout);
    return backend;
}

}  // namespace ddprun::worker
