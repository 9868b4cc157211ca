#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/call_within.hpp"

namespace ddprun::worker {

namespace {

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

class BreakableGloo final : public c10d::ProcessGroupGloo {
public:
    using ProcessGroupGloo::ProcessGroupGloo;

    // Closing shows every rank that waits for this one at once that it is out, even if another rank
    // has died; this rank's own pending collectives end, but those that were being written.
    void abort() override {
        for (const std::shared_ptr<gloo::Context>& context : contexts_) {
            context->closeConnections();
        }
    }

    c10::intrusive_ptr<Backend> split(
        const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
        const c10::intrusive_ptr<Backend::Options>& options) override {
        const SigpipeBlocked blocked;
        return ProcessGroupGloo::split(store, ranks, options);
    }
    c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                      const c10::intrusive_ptr<Backend::Options>& options,
                                      const int& rank, const int& size) override {
        const SigpipeBlocked blocked;
        return ProcessGroupGloo::merge(store, options, rank, size);
    }

    /// Each rank sends each other one the address of its own end of their connection.
    GroupConnections exchange_ends() {
        GroupConnections connections;
        const int world_size = getSize();
        if (world_size == 1) {
            return connections;
        }
        std::vector<std::string> own(static_cast<std::size_t>(world_size));
        at::Tensor told = at::zeros({world_size, kAddressBytes}, at::kChar);
        for (int other = 0; other < world_size; ++other) {
            if (other != getRank()) {
                std::string& end = own[static_cast<std::size_t>(other)];
                end = own_end(other);
                char* const row = static_cast<char*>(told.data_ptr()) + other * kAddressBytes;
                std::copy_n(end.data(), std::min<std::size_t>(end.size(), kAddressBytes), row);
            }
        }
        at::Tensor heard = at::empty_like(told);
        std::vector<std::int64_t> one_row_each;  // none given: all alike
        alltoall_base(heard, told, one_row_each, one_row_each)->wait();
        for (int other = 0; other < world_size; ++other) {
            const char* const row =
                static_cast<const char*>(heard.const_data_ptr()) + other * kAddressBytes;
            const std::string theirs(row, std::find(row, row + kAddressBytes, '\0'));
            const std::string& mine = own[static_cast<std::size_t>(other)];
            if (!mine.empty() && !theirs.empty()) {
                connections.emplace(std::pair(mine, theirs), other);
            }
        }
        return connections;
    }

private:
    static constexpr std::ptrdiff_t kAddressBytes = 64;

    /// The start of what Gloo's TCP says of a connection's own end; empty: of no known family.
    [[nodiscard]] std::string own_end(int other) const {
        const std::vector<char> bytes = contexts_.front()->getPair(other)->address().bytes();
        sockaddr_storage address{};
        std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof(address)));
        return address_text(address).value_or("");
    }
};

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options_for(const BackendPlace& place) {
    auto options = c10d::ProcessGroupGloo::Options::create(place.join_timeout);
    options->devices.push_back(
        place.local_address.empty()
            ? c10d::ProcessGroupGloo::createDefaultDevice()
            : c10d::ProcessGroupGloo::createDeviceForHostname(place.local_address));
    return options;
}

}  // namespace

Gloo make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place,
               Loss& loss) {
    const auto gloo = std::make_shared<Gloo>();
    // Gloo's own time-out says more, and leaves no thread. 0 stays none.
    const auto bound = place.join_timeout.count() > 0
                           ? place.join_timeout + RuntimeLimits{}.gloo_join_slack
                           : place.join_timeout;
    call_within(bound, loss, kNotConnected, [gloo, store, place] {
        auto backend = c10::make_intrusive<BreakableGloo>(store, place.rank, place.world_size,
                                                          options_for(place));
        gloo->connections = backend->exchange_ends();
        gloo->backend = std::move(backend);
    });
    return std::move(*gloo);
}

}  // namespace ddprun::worker
