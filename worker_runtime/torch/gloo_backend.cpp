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
    // waits for; and our own pending collectives end, for which the destructor waits.
    void abort() override {
        for (const std::shared_ptr<gloo::Context>& context : contexts_) {
            context->closeConnections();
        }
    }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendPlace& place) {
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
