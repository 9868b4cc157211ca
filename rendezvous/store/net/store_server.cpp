#include "rendezvous/store/net/store_server.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"
#include "rendezvous/store/core/store_core.hpp"
#include "rendezvous/store/net/service.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint64_t kWakeEvent = StoreBusyPoll::kNobody;
static_assert(kWakeEvent < StoreService::kFirstEvent);

constexpr std::chrono::microseconds kNap{50};  ///< a shorter sleep is not worth it

}  // namespace

StoreServer::StoreServer(Limits limits, Say say) : limits_(limits), say_(std::move(say)) {}

StoreServer::~StoreServer() {
    if (thread_.joinable()) {
        leave(End{});
        thread_.join();
    }
}

void StoreServer::serve(UniqueFd socket, std::vector<std::string> admitted,
                        std::size_t expected_clients) {
    start({.backend = std::make_unique<StoreCore>(limits_),
           .socket = std::move(socket),
           .admitted = std::move(admitted),
           .expected_clients = expected_clients});
}

void StoreServer::serve_with(std::unique_ptr<StoreBackend> backend, UniqueFd socket) {
    start({.backend = std::move(backend), .socket = std::move(socket), .admitted = {}});
}

void StoreServer::serve_adopted(std::vector<std::string> admitted, std::size_t expected_clients) {
    start({.backend = std::make_unique<StoreCore>(limits_),
           .socket = UniqueFd(),
           .admitted = std::move(admitted),
           .expected_clients = expected_clients});
}

void StoreServer::adopt(UniqueFd client, std::string first_bytes) {
    if (!thread_.joinable()) {
        return;
    }
    bool is_first = false;
    {
        const std::lock_guard lock(mutex_);
        if (adopted_.size() >= limits_.store_adopted_max) {
            ++counts_.refused;
            return;
        }
        is_first = adopted_.empty();
        adopted_.push_back({std::move(client), std::move(first_bytes)});
    }
    // The wake-up for the first waiting client takes in all that follow.
    if (is_first) {
        wake();
    }
}

void StoreServer::close() {
    if (thread_.joinable()) {
        leave(Close{});
    }
}

StoreCounts StoreServer::counts() const {
    const auto instant = [](const std::atomic<std::int64_t>& ns) {
        const std::int64_t told = ns.load();
        return told == 0 ? Instant::min() : Instant(std::chrono::nanoseconds(told));
    };
    StoreCounts counts{.admitted = counts_.admitted,
                       .refused = counts_.refused,
                       .cut_off = counts_.cut_off,
                       .connected = counts_.connected,
                       .all_here = instant(counts_.init.all_here_ns),
                       .group_ready = instant(counts_.init.group_ns)};
    for (std::size_t i = 0; i < kStoreKinds; ++i) {
        const SharedStoreCounts::Operation& told = counts_.operations.at(i);
        counts.operations.at(i) = {
            .count = told.count, .timed = told.timed, .time_ns = told.time_ns};
    }
    return counts;
}

void StoreServer::ask_who_waits(std::function<void(StoreWaits)> answer) {
    if (!thread_.joinable()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        who_waits_ = std::move(answer);
    }
    wake();
}

void StoreServer::start(Serve order) {
    start_thread();
    leave(std::move(order));
}

void StoreServer::leave(Order order) {
    {
        const std::lock_guard lock(mutex_);
        order_ = std::move(order);
        adopted_.clear();  // They were clients of the store before.
    }
    wake();
}

void StoreServer::wake() {
    const std::uint64_t one = 1;
    DDP_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one, errno);
}

Result<void> StoreServer::prepare() {
    if (epoll_.is_open()) {
        return {};
    }
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kWakeEvent;
    if (!epoll.is_open() || !wake.is_open() ||
        ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
        return system_error(errno, "no descriptors to serve a store with");
    }
    epoll_ = std::move(epoll);
    wake_ = std::move(wake);
    return {};
}

/// The thread takes no signals: they belong to the loop that supervises.
void StoreServer::start_thread() {
    if (thread_.joinable()) {
        return;
    }
    const Result<void> prepared = prepare();
    DDP_CHECK(prepared.has_value(), prepared.has_error() ? prepared.error().what : "");
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "ddprun-store");
}

/// An epoll loop of its own: Asio's edge-triggered one reads once more after every request.
void StoreServer::run() {
    std::array<epoll_event, 256> events;
    while (true) {
        const std::span<epoll_event> turn = await_events(events);
        const auto is_wake = [](const epoll_event& e) { return e.data.u64 == kWakeEvent; };
        if (std::any_of(turn.begin(), turn.end(), is_wake)) {
            Left left = take_left();
            const bool is_new = left.order.has_value();
            if (is_new && !carry_out(std::move(*left.order))) {
                return;
            }
            for (Adopted& client : left.adopted) {
                if (service_) {
                    service_->adopt(std::move(client.fd), client.first_bytes);
                }
            }
            if (left.who_waits) {
                left.who_waits(service_ ? service_->waits() : StoreWaits());
            }
            if (is_new) {
                continue;  // The turn's other events belong to the store before.
            }
        }
        if (service_) {
            service_->on_turn(turn);
        }
        if (service_ && service_->next_deadline()) {
            service_->on_time(std::chrono::steady_clock::now());
        }
    }
}

/// Sleeps until something happens; looks first where that is quicker.
std::span<epoll_event> StoreServer::await_events(std::span<epoll_event> events) {
    // The clock is read for a client that is alone, not for each of many.
    const bool needs_time = busy_poll_.needs_time();
    const Instant end = needs_time ? std::chrono::steady_clock::now() + kNap : Instant{};
    std::size_t count = 0;
    while (busy_poll_.is_due() && count == 0 && std::chrono::steady_clock::now() < end) {
        count = look(events, 0);
    }
    if (count == 0) {
        count = look(events, patience_ms());
    }
    busy_poll_.on_turn(count == 1 ? events.front().data.u64 : StoreBusyPoll::kNobody,
                       needs_time && std::chrono::steady_clock::now() < end);
    return events.first(count);
}

std::size_t StoreServer::look(std::span<epoll_event> events, int patience_ms) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience_ms);
    DDP_CHECK(count >= 0 || errno == EINTR, errno);
    return static_cast<std::size_t>(std::max(count, 0));
}

/// Milliseconds until the service wants its time, rounded up; -1 for as long as it takes.
int StoreServer::patience_ms() const {
    if (!service_ || !service_->next_deadline()) {
        return -1;
    }
    const Duration left = *service_->next_deadline() - std::chrono::steady_clock::now();
    const auto rounded = std::chrono::ceil<Milliseconds>(std::max(left, Duration::zero()));
    return static_cast<int>(rounded.count());
}

StoreServer::Left StoreServer::take_left() {
    // Only resets the wake-up; that there was none is no failure.
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof wakes);
    const std::lock_guard lock(mutex_);
    return {.order = std::exchange(order_, std::nullopt),
            .adopted = std::exchange(adopted_, {}),
            .who_waits = std::exchange(who_waits_, {})};
}

/// False at the end.
bool StoreServer::carry_out(Order order) {
    if (service_) {
        earlier_.include(service_->admission(), limits_.store_earlier_addresses_max);
    }
    service_.reset();
    if (Serve* serve = std::get_if<Serve>(&order)) {
        for (std::string& line : store_capacity_warnings(serve->expected_clients)) {
            if (say_) {
                say_(std::move(line));
            }
        }
        service_ = std::make_unique<StoreService>(
            epoll_.get(), limits_, say_, counts_, std::move(serve->backend),
            std::move(serve->socket), serve->admitted, earlier_, serve->expected_clients);
    }
    return !std::holds_alternative<End>(order);
}

}  // namespace ddprun::rdzv
