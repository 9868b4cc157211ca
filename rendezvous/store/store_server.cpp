#include "rendezvous/store/store_server.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "rendezvous/base/check.hpp"
#include "rendezvous/store/store_service.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint64_t kWakeEvent = 0;
static_assert(kWakeEvent < StoreService::kFirstEvent);

}  // namespace

/// The owner's thread leaves an order and wakes the store's thread. There is at most one order: a
/// newer one replaces it, as carrying out the older one first would make no difference.
///
/// The thread runs its own epoll loop: Asio's edge-triggered one tries to read once more after
/// every request, and its bookkeeping was two thirds of what an idle client costs.
class StoreServer::Impl {
public:
    Impl(Limits limits, Say say) : limits_(limits), say_(std::move(say)) {}

    ~Impl() {
        if (thread_.joinable()) {
            leave(Order{.socket = {}, .admitted = {}, .is_end = true});
            thread_.join();
        }
    }

    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    void serve(UniqueFd socket, std::vector<std::string> admitted) {
        start_thread();
        leave(Order{.socket = std::move(socket), .admitted = std::move(admitted), .is_end = false});
    }

    void close() {
        if (thread_.joinable()) {
            leave(Order{});
        }
    }

    StoreCounts counts() const {
        return {.admitted = counts_.admitted,
                .refused = counts_.refused,
                .cut_off = counts_.cut_off,
                .connected = counts_.connected};
    }

private:
    struct Order {
        UniqueFd socket;  ///< to be served; none means to serve nothing
        std::vector<std::string> admitted;
        bool is_end = false;
    };

    void leave(Order order) {
        {
            const std::lock_guard lock(mutex_);
            order_ = std::move(order);
        }
        const std::uint64_t one = 1;
        DDP_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one, errno);
    }

    /// The thread takes no signals: they belong to the loop that supervises.
    void start_thread() {
        if (thread_.joinable()) {
            return;
        }
        epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
        wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = kWakeEvent;
        DDP_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0, errno);
        sigset_t all;
        sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] { run(); });
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        ::pthread_setname_np(thread_.native_handle(), "ddprun-store");
    }

    void run() {
        std::array<epoll_event, 256> events;
        while (true) {
            const int count = ::epoll_wait(epoll_.get(), events.data(),
                                           static_cast<int>(events.size()), patience_ms());
            DDP_CHECK(count >= 0 || errno == EINTR, errno);
            for (int index = 0; index < count; ++index) {
                const epoll_event& event = events[static_cast<std::size_t>(index)];
                if (event.data.u64 != kWakeEvent) {
                    DDP_CHECK(service_.has_value(), event.data.u64);
                    service_->on_event(event.data.u64, event.events);
                    continue;
                }
                if (!carry_out_order()) {
                    return;
                }
                break;  // What is left of this turn was meant for the store before.
            }
            if (service_ && service_->next_deadline()) {
                service_->on_time(std::chrono::steady_clock::now());
            }
        }
    }

    /// Milliseconds until the service wants its time, rounded up; -1 for as long as it takes.
    int patience_ms() const {
        if (!service_ || !service_->next_deadline()) {
            return -1;
        }
        const Duration left = *service_->next_deadline() - std::chrono::steady_clock::now();
        const auto rounded = std::chrono::ceil<Milliseconds>(std::max(left, Duration::zero()));
        return static_cast<int>(rounded.count());
    }

    /// False at the end.
    bool carry_out_order() {
        // Only resets the wake-up; that there was none is no failure.
        std::uint64_t wakes = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof wakes);
        std::optional<Order> order;
        {
            const std::lock_guard lock(mutex_);
            order = std::exchange(order_, std::nullopt);
        }
        if (!order) {
            return true;
        }
        service_.reset();
        if (order->socket.is_open()) {
            service_.emplace(epoll_.get(), limits_, say_, counts_, std::move(order->socket),
                             order->admitted);
        }
        return !order->is_end;
    }

    const Limits limits_;
    const Say say_;
    SharedStoreCounts counts_;
    UniqueFd epoll_;
    UniqueFd wake_;
    std::mutex mutex_;
    std::optional<Order> order_;           ///< guarded by mutex_
    std::optional<StoreService> service_;  ///< only the store's thread touches it
    std::thread thread_;
};

StoreServer::StoreServer(Limits limits, Say say)
    : impl_(std::make_unique<Impl>(limits, std::move(say))) {}

StoreServer::~StoreServer() = default;

void StoreServer::serve(UniqueFd socket, std::vector<std::string> admitted) {
    impl_->serve(std::move(socket), std::move(admitted));
}

void StoreServer::close() {
    impl_->close();
}

StoreCounts StoreServer::counts() const {
    return impl_->counts();
}

}  // namespace ddprun::rdzv
