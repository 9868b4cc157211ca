#include "worker_runtime/torch/peer_watch.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun::worker {

namespace {

constexpr std::uint64_t kWake = ~std::uint64_t{0};

/// "address:port" of the other end; none if `fd` is no connected socket of the internet.
std::optional<std::string> peer_of(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::getpeername(fd, generic, &size) != 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6)) {
        return std::nullopt;
    }
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    if (::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return "an unknown address";
    }
    return fmt::format("{}:{}", host.data(), port.data());
}

}  // namespace

c10::intrusive_ptr<Loss::Future> Loss::unless_lost(const c10::intrusive_ptr<Future>& inner) {
    // With its devices: on GPUs whoever waits goes on when their streams have come so far.
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
            waiting->setError(done.exception_ptr());
        } else {
            waiting->markCompleted(done.constValue());
        }
    });
    return outer;
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

void Loss::check() const {
    const std::lock_guard lock(mutex_);
    if (error_) {
        std::rethrow_exception(error_);
    }
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

void Loss::lose(const std::string& what) {
    std::map<const Future*, c10::intrusive_ptr<Future>> waiting;
    std::vector<std::weak_ptr<PeerWatch>> parts;
    {
        const std::lock_guard lock(mutex_);
        if (error_) {
            return;
        }
        error_ = std::make_exception_ptr(c10::DistBackendError(what, nullptr));
        waiting.swap(pending_);
        parts.swap(parts_);
        for (const auto& [guard, interrupt] : interrupts_) {
            interrupt();
        }
    }
    for (const auto& [key, future] : waiting) {
        future->setError(error_);
    }
    for (const std::weak_ptr<PeerWatch>& part : parts) {
        if (const std::shared_ptr<PeerWatch> watch = part.lock()) {
            watch->cut(what);
        }
    }
}

c10::intrusive_ptr<Loss::Future> Loss::take(const Future* key) {
    const std::lock_guard lock(mutex_);
    const auto node = pending_.extract(key);
    return node ? node.mapped() : c10::intrusive_ptr<Future>();
}

std::set<int> open_descriptors() {
    std::set<int> found;
    std::error_code unreadable;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", unreadable)) {
        const std::string name = entry.path().filename();
        int fd = -1;
        std::from_chars(name.data(), name.data() + name.size(), fd);
        found.insert(fd);
    }
    return found;
}

PeerWatch::PeerWatch(const std::set<int>& before, std::shared_ptr<Loss> loss,
                     const RuntimeLimits& limits)
    : loss_(std::move(loss)),
      limits_(limits),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    DDP_CHECK(events_.is_open() && wake_.is_open(), errno);
    for (const int fd : open_descriptors()) {
        std::optional<std::string> peer = before.contains(fd) ? std::nullopt : peer_of(fd);
        if (peer) {
            UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
            if (own.is_open()) {
                connections_.push_back({.fd = std::move(own), .peer = std::move(*peer)});
            }
        }
    }
    const auto add = [this](int fd, std::uint32_t events, std::uint64_t number) {
        epoll_event event{};
        event.events = events;
        event.data.u64 = number;
        const int error = ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event);
        DDP_CHECK(error == 0, errno);
    };
    add(wake_.get(), EPOLLIN, kWake);
    for (std::size_t i = 0; i < connections_.size(); ++i) {
        add(connections_[i].fd.get(), EPOLLRDHUP, i);
    }
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
    stand_down();
    const std::uint64_t one = 1;
    // An eventfd takes it: its counter is far from full.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
}

void PeerWatch::cut(const std::string& why) {
    for (const Connection& connection : connections_) {
        (void)::shutdown(connection.fd.get(), SHUT_RDWR);
    }
    loss_->lose(why);
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
    pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    const auto grace = static_cast<int>(limits_.loss_grace.count());
    if (::poll(&wake, 1, grace) != 0 || is_standing_down_) {
        return;
    }
    cut(fmt::format("the connection to {} has ended", connections_[event.data.u64].peer));
}

}  // namespace ddprun::worker
