#include "worker_runtime/comm/peer_watch.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/os/signals_blocked.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun::worker {

namespace {

constexpr std::uint64_t kWake = ~std::uint64_t{0};
constexpr std::size_t kOwnDescriptors = 2;  // of a watch: events_ and wake_

using EndOf = int (*)(int, sockaddr*, socklen_t*);

/// The address of one end of `fd`, by getpeername() or getsockname(); none if `fd` is no connected
/// socket of the internet.
std::optional<std::string> end_of(int fd, EndOf end) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (end(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        return std::nullopt;
    }
    return address_text(address);
}

/// A name of the peer if `fd` is a connection of `group`.
std::optional<std::string> peer_of(int fd, const GroupConnections& group) {
    const std::optional<std::string> remote = end_of(fd, getpeername);
    const std::optional<std::string> local = end_of(fd, getsockname);
    if (!remote || !local) {
        return std::nullopt;
    }
    const auto found = group.find({*local, *remote});
    return found == group.end()
               ? std::nullopt
               : std::optional(fmt::format("rank {} at {}", found->second, *remote));
}

/// Raises the limit of open files to `needed`, as far as the hard limit lets it. The limit in
/// force.
rlim_t raise_limit(rlim_t needed) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed &&
        limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = std::min(needed, limit.rlim_max);
        (void)::setrlimit(RLIMIT_NOFILE, &limit);  // what is in force is read below
        (void)::getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur;
}

/// The descriptors that this process has open. The look takes one more, for which the hard limit is
/// used where the one in force has none.
std::vector<int> open_descriptors() {
    const std::filesystem::path folder("/proc/self/fd");
    std::error_code unreadable;
    std::filesystem::directory_iterator entries(folder, unreadable);
    if (rlimit before{};
        unreadable == std::errc::too_many_files_open && ::getrlimit(RLIMIT_NOFILE, &before) == 0) {
        (void)raise_limit(before.rlim_max);
        entries = std::filesystem::directory_iterator(folder, unreadable);
        (void)::setrlimit(RLIMIT_NOFILE, &before);  // make_room() raises it by what is needed
    }
    std::vector<int> found;
    for (const auto& entry : entries) {
        found.push_back(whole_number<int>(entry.path().filename().native()).value_or(-1));
    }
    return found;
}

/// Raises the limit of open files so that `left` can be opened after `wanted` more than `open`. How
/// many of the wanted there is room for: if not for all, half of the room is the program's, or
/// `left` if that is less.
std::size_t make_room(std::size_t open, std::size_t wanted, std::size_t left) {
    const rlim_t limit = raise_limit(open + wanted + left);
    const rlim_t room = limit > open ? limit - open : 0;
    return std::min<std::size_t>(wanted, room - std::min<rlim_t>(left, room / 2));
}

bool has_reported_error(const c10::intrusive_ptr<c10d::Backend>& engine) {
    try {
        return engine->getError() != c10d::ErrorType::SUCCESS;
    } catch (const std::exception&) {
        return false;  // an engine that reports none, before LibTorch 2.14
    }
}

std::string end_of_connection(const std::string& peer) {
    return fmt::format("the connection to {} has ended", peer);
}

}  // namespace

c10::intrusive_ptr<Loss::Future> Loss::unless_lost(const c10::intrusive_ptr<Future>& inner) {
    // With its devices: on GPUs a waiting caller continues when their streams have come so far.
    const c10::intrusive_ptr<Future> outer = inner->createInstance(inner->elementType());
    {
        const std::lock_guard lock(mutex_);
        if (error_) {
            outer->setError(error_);
            return outer;
        }
        pending_.emplace(outer.get(), outer);
    }
    inner->addCallback([loss = shared_from_this(), key = outer.get()](Future& done) {
        const c10::intrusive_ptr<Future> waiting = loss->take(key);
        if (!waiting) {
            return;  // told already
        }
        if (done.hasError()) {
            waiting->setError(loss->explained(done.exception_ptr()));
        } else {
            waiting->markCompleted(done.constValue());
        }
    });
    return outer;
}

std::exception_ptr Loss::explained(const std::exception_ptr& failure) const {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& told) {
        const std::string text = first_line(told);
        const std::string explained = explain_(text);
        return explained == text
                   ? failure
                   : std::make_exception_ptr(c10::DistBackendError(explained, nullptr));
    } catch (...) {
        return failure;
    }
}

Loss::Guard::Guard(Loss& loss, std::function<void()> interrupt) : loss_(loss) {
    const std::lock_guard lock(loss_.mutex_);
    if (loss_.error_) {
        interrupt();
    }
    place_ = loss_.interrupts_.emplace(this, std::move(interrupt)).first;
}

Loss::Guard::~Guard() {
    const std::lock_guard lock(loss_.mutex_);
    loss_.interrupts_.erase(place_);
}

bool Loss::find() {
    std::vector<c10::intrusive_ptr<c10d::Backend>> engines;
    {
        const std::lock_guard lock(mutex_);
        engines = engines_;
    }
    if (std::any_of(engines.begin(), engines.end(), has_reported_error)) {
        begin_to_lose("NCCL has reported an error; c10d has written the reason to stderr");
    }
    return is_lost_;
}

void Loss::check() {
    if (!find()) {
        return;
    }
    const std::lock_guard lock(mutex_);
    if (error_) {
        std::rethrow_exception(error_);
    }
}

void Loss::abort_when_lost(c10::intrusive_ptr<c10d::Backend> engine) {
    {
        const std::lock_guard lock(mutex_);
        if (!error_) {
            engines_.push_back(std::move(engine));
            return;
        }
        ++left_;
    }
    abort_aside([engine = std::move(engine)] { engine->abort(); });
    wait_for_aborts();
}

void Loss::carry_on_to(const std::shared_ptr<PeerWatch>& part) {
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(parts_, [](const auto& earlier) { return earlier.expired(); });
        parts_.push_back(part);
        if (!error_) {
            return;
        }
    }
    part->cut("the group that it is a part of is cut");
}

void Loss::begin_to_lose(const std::string& what) {
    std::map<const Future*, c10::intrusive_ptr<Future>> waiting;
    std::vector<std::weak_ptr<PeerWatch>> parts;
    std::vector<c10::intrusive_ptr<c10d::Backend>> engines;
    std::multiset<std::thread::id>::iterator self;
    {
        const std::lock_guard lock(mutex_);
        if (error_) {
            return;
        }
        self = tellers_.insert(std::this_thread::get_id());
        error_ = std::make_exception_ptr(c10::DistBackendError(what, nullptr));
        is_lost_ = true;
        waiting.swap(pending_);
        parts.swap(parts_);
        engines.swap(engines_);
        left_ = 1 + parts.size() + engines.size();
        for (const auto& [guard, interrupt] : interrupts_) {
            interrupt();
        }
    }
    for (const auto& [key, future] : waiting) {
        future->setError(error_);
    }
    for (const std::weak_ptr<PeerWatch>& part : parts) {
        abort_aside([part, what] {
            if (const std::shared_ptr<PeerWatch> watch = part.lock()) {
                watch->cut(what);
            }
        });
    }
    for (const c10::intrusive_ptr<c10d::Backend>& engine : engines) {
        abort_aside([engine] { engine->abort(); });
    }
    {
        const std::lock_guard lock(mutex_);
        tellers_.erase(self);
        --left_;
    }
    ended_.notify_all();
}

void Loss::lose(const std::string& what) {
    begin_to_lose(what);
    wait_for_aborts();
}

/// Side by side with the others: an engine's abort may wait for what another group has on the same
/// GPU. `left_` counts it already.
void Loss::abort_aside(std::function<void()> abort) {
    const auto act = [loss = shared_from_this(), abort = std::move(abort)] {
        std::multiset<std::thread::id>::iterator self;
        {
            const std::lock_guard lock(loss->mutex_);
            self = loss->tellers_.insert(std::this_thread::get_id());
        }
        try {
            abort();
        } catch (const std::exception&) {
            // A broken group cannot be broken further.
        }
        {
            const std::lock_guard lock(loss->mutex_);
            loss->tellers_.erase(self);
            --loss->left_;
        }
        loss->ended_.notify_all();
    };
    const SignalsBlocked blocked;
    try {
        // Detached, so that no thread must wait for it: NCCL's abort can take its time-out.
        std::thread(act).detach();
    } catch (const std::system_error&) {
        act();  // no thread can be made
    }
}

void Loss::wait_for_aborts() {
    std::unique_lock lock(mutex_);
    if (!tellers_.contains(std::this_thread::get_id())) {
        ended_.wait_for(lock, limits_.abort_wait, [this] { return left_ == 0; });
    }
}

c10::intrusive_ptr<Loss::Future> Loss::take(const Future* key) {
    const std::lock_guard lock(mutex_);
    const auto node = pending_.extract(key);
    return node ? node.mapped() : c10::intrusive_ptr<Future>();
}

std::optional<std::string> address_text(const sockaddr_storage& address) {
    std::array<char, INET6_ADDRSTRLEN> host{};
    if (address.ss_family == AF_INET) {
        const auto& in = reinterpret_cast<const sockaddr_in&>(address);
        (void)::inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
        return fmt::format("{}:{}", host.data(), ntohs(in.sin_port));
    }
    if (address.ss_family == AF_INET6) {
        const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
        (void)::inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
        return fmt::format("[{}]:{}", host.data(), ntohs(in.sin6_port));
    }
    return std::nullopt;
}

void PeerWatch::find_connections(const GroupConnections& group) {
    const std::vector<int> open = open_descriptors();
    std::vector<int> found;
    std::copy_if(open.begin(), open.end(), std::back_inserter(found),
                 [&](int fd) { return peer_of(fd, group).has_value(); });
    found.resize(make_room(open.size() + kOwnDescriptors, found.size(), limits_.descriptors_left));
    for (const int fd : found) {
        UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
        // Asked again: another thread may have closed it meanwhile, and opened something else.
        std::optional<std::string> peer = peer_of(own.get(), group);
        if (peer) {
            connections_.push_back({.fd = std::move(own), .peer = std::move(*peer)});
        }
    }
}

PeerWatch::PeerWatch(const GroupConnections& group, std::shared_ptr<Loss> loss,
                     const RuntimeLimits& limits)
    : loss_(std::move(loss)), limits_(limits) {
    find_connections(group);  // first: it raises the limit of open files
    events_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const auto add = [this](int fd, std::uint32_t events, std::uint64_t number) {
        epoll_event event{};
        event.events = events;
        event.data.u64 = number;
        return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
    };
    bool are_added = events_.is_open() && wake_.is_open() && add(wake_.get(), EPOLLIN, kWake);
    for (std::size_t i = 0; are_added && i < connections_.size(); ++i) {
        are_added = add(connections_[i].fd.get(), EPOLLRDHUP, i);
    }
    if (!are_added) {
        // Not one more file can be opened, there is no memory for it, or the limit is
        // fs.epoll.max_user_watches: nothing is watched.
        connections_.clear();
        return;
    }
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
    if (!thread_.joinable()) {
        return;
    }
    stand_down();
    const std::uint64_t one = 1;
    // An eventfd takes it: its counter is far from full.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
}

void PeerWatch::cut(const std::string& why) {
    shut_down();
    loss_->lose(why);
}

void PeerWatch::shut_down() {
    expect_cut();
    for (const Connection& connection : connections_) {
        (void)::shutdown(connection.fd.get(), SHUT_RDWR);
    }
}

std::optional<std::string> PeerWatch::ended() const {
    if (const Connection* const first = first_ended_) {
        return end_of_connection(first->peer);
    }
    for (const Connection& connection : connections_) {
        pollfd end{.fd = connection.fd.get(), .events = POLLRDHUP, .revents = 0};
        if (::poll(&end, 1, 0) > 0) {
            // The look came first: an end before the cut is the peer's.
            return is_cut_ ? std::nullopt : std::optional(end_of_connection(connection.peer));
        }
    }
    return std::nullopt;
}

std::string PeerWatch::explained(const std::string& failure) const {
    const std::optional<std::string> end = ended();
    return end && !failure.starts_with(*end) ? fmt::format("{} ({})", *end, failure) : failure;
}

void PeerWatch::let_others_notice() const {
    if (ended()) {
        // Whether they have noticed is told by no event.
        (void)::poll(nullptr, 0, static_cast<int>(limits_.notice_wait.count()));
    }
}

void PeerWatch::watch() {
    epoll_event event{};
    int count = 0;
    do {
        count = ::epoll_wait(events_.get(), &event, 1, -1);
    } while (count < 0 && errno == EINTR);
    if (count != 1 || event.data.u64 == kWake || is_standing_down_) {
        return;
    }
    const Connection& first = connections_[event.data.u64];
    if (!is_cut_) {
        first_ended_ = &first;
    }
    pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    const auto grace = static_cast<int>(limits_.loss_grace.count());
    if (::poll(&wake, 1, grace) != 0 || is_standing_down_) {
        return;
    }
    // Without a wait for the aborts: the destructor joins this thread.
    shut_down();
    loss_->begin_to_lose(end_of_connection(first.peer));
}

}  // namespace ddprun::worker
