#include "rendezvous/store/net/service.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/store/net/session.hpp"
#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

namespace {

constexpr int kAcceptedPerTurn = 1024;  ///< then the clients that are here get a turn
// Replies that are sent together. More would evict received data from the caches.
constexpr std::size_t kRepliesAtOnce = 32;
constexpr std::size_t kReplyBytesAtOnce = std::size_t{64} << 10;
constexpr std::chrono::seconds kBetweenLines{1};
constexpr Milliseconds kAcceptPause{100};
constexpr std::uint64_t kListenerEvent = StoreService::kFirstEvent;
constexpr std::uint64_t kBackendEvent = kListenerEvent + 1;
constexpr std::uint64_t kFirstClientEvent = kBackendEvent + 1;

/// epoll_ctl() without the struct.
[[nodiscard]] bool control(int epoll_fd, int operation, int fd, std::uint32_t events,
                           std::uint64_t number) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return ::epoll_ctl(epoll_fd, operation, fd, &event) == 0;
}

UniqueFd open_spare() {
    return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

UniqueFd accept_one(int listener, sockaddr_storage& peer) {
    peer = {};
    socklen_t size = sizeof peer;
    return UniqueFd(::accept4(listener, generic(peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

StoreService::StoreService(int epoll_fd, const Limits& limits, const StoreServer::Say& say,
                           SharedStoreCounts& counts, std::unique_ptr<StoreBackend> backend,
                           UniqueFd socket, const std::vector<std::string>& admitted,
                           Admission earlier, std::size_t expected_clients)
    : epoll_fd_(epoll_fd),
      limits_(limits),
      say_(say),
      counts_(counts),
      listener_(std::move(socket)),
      spare_(open_spare()),
      partial_(limits.store_partial_bytes_max),
      unread_(limits.store_unread_bytes_max),
      admission_(admitted),
      earlier_(std::move(earlier)),
      backend_(std::move(backend)),
      stalls_(limits),
      init_(expected_clients, counts.init) {
    backend_->attach(epoll_fd_, kBackendEvent);
    for (const std::string& text : admission_.unusable()) {
        this->say(
            fmt::format("store: {} in the list of admitted addresses is no numeric address "
                        "and admits nobody",
                        text));
    }
    if (!listener_.is_open()) {
        return;
    }
    // accept4() must never block, whichever process made the socket.
    const int flags = ::fcntl(listener_.get(), F_GETFL);
    ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK);
    if (!control(epoll_fd_, EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent)) {
        this->say(
            fmt::format("store: {}", system_error(errno, "its socket cannot be watched").what));
    }
}

StoreService::~StoreService() {
    // The socket before the clients: a client whose connection ends finds no listener. Others may
    // hold a duplicate of it, so closing alone would leave it in the epoll set.
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_DEL, listener_.get(), 0, 0));
    listener_.reset();
    counts_.connected = 0;
    for (const Client& client : clients_) {
        if (client.session) {
            client.session->close();
        }
    }
}

void StoreService::on_turn(std::span<const epoll_event> events) {
    // First of all who wants to come in: the kernel's queue for them is short, and whom it has no
    // room for tries again only after a second.
    const auto is_listener = [](const epoll_event& e) { return e.data.u64 == kListenerEvent; };
    if (std::any_of(events.begin(), events.end(), is_listener)) {
        accept_clients();
    }
    for (const epoll_event& event : events) {
        if (event.data.u64 == kBackendEvent) {
            backend_->on_event(event.events, replies_);
            settle();
        }
        if (event.data.u64 < kFirstClientEvent) {
            continue;
        }
        // The client may have been disconnected, even replaced, by an earlier event of the same
        // turn. Then no session exists, or it finds nothing to read.
        const std::uint64_t client = event.data.u64 - kFirstClientEvent;
        if (client < clients_.size() && clients_[client].session) {
            clients_[client].session->on_event(event.events);
        }
        closed_.clear();
    }
    backend_->end_turn(replies_);
    settle();
    look_for_room();
    closed_.clear();
}

/// When the backend has room again, the requests that were left lying get their turn.
void StoreService::look_for_room() {
    const bool had_room = std::exchange(has_room_, backend_->has_room());
    if (had_room == has_room_) {
        return;
    }
    for (std::size_t client = 0; client < clients_.size(); ++client) {
        if (clients_[client].session) {
            clients_[client].session->on_room();
        }
    }
    backend_->end_turn(replies_);
    settle();
}

void StoreService::watch(StoreClient client, int fd, std::uint32_t before, std::uint32_t wanted) {
    const int operation = wanted == 0 ? EPOLL_CTL_DEL : before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (!control(epoll_fd_, operation, fd, wanted, kFirstClientEvent + client.value())) {
        drop(client);
    }
}

void StoreService::say(std::string line) {
    if (say_) {
        say_(std::move(line));
    }
}

void StoreService::accept_clients() {
    for (int accepted = 0; accepted < kAcceptedPerTurn; ++accepted) {
        sockaddr_storage peer;
        UniqueFd fd = accept_one(listener_.get(), peer);
        if (fd.is_open()) {
            take(std::move(fd), peer);
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        }
        if (errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting();
            return;
        }
        if (errno == EMFILE || errno == ENFILE) {
            const bool was_somebody_there = refuse_with_spare();
            if (!spare_.is_open()) {
                pause_accepting();
                return;
            }
            if (!was_somebody_there) {
                break;
            }
        }
        // Anything else concerns the one connection, which is gone already.
    }
}

/// A PyTorch client that is neither answered nor closed waits for ever. So when there are no
/// descriptors left, the spare one is given up for a moment, to take the connection and close it;
/// the client tries again later.
bool StoreService::refuse_with_spare() {
    spare_.reset();
    sockaddr_storage peer;
    UniqueFd fd = accept_one(listener_.get(), peer);
    const bool was_somebody_there = fd.is_open();
    if (was_somebody_there) {
        refuse(peer, "this process may open no more files; raise its limit (ulimit -n)");
    }
    fd.reset();
    spare_ = open_spare();
    return was_somebody_there;
}

void StoreService::pause_accepting() {
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_MOD, listener_.get(), 0, kListenerEvent));
    accept_again_ = std::chrono::steady_clock::now() + kAcceptPause;
}

std::optional<Instant> StoreService::next_deadline() const {
    std::optional<Instant> first = accept_again_;
    for (const std::optional<Instant>& deadline :
         {stalls_.next_deadline(), backend_->next_deadline()}) {
        if (deadline && (!first || *deadline < *first)) {
            first = deadline;
        }
    }
    return first;
}

void StoreService::on_time(Instant now) {
    if (accept_again_ && *accept_again_ <= now) {
        accept_again();
    }
    for (const StoreStalls::Overdue& overdue : stalls_.overdue(now)) {
        cut_off(overdue.client,
                Error{ErrorCode::TimedOut, fmt::format("{}, for {} ms", text_of(overdue.kind),
                                                       overdue.patience.count())});
    }
    settle();
    backend_->on_time(now, replies_);
    backend_->end_turn(replies_);
    settle();
    look_for_room();
    closed_.clear();
}

StoreWaits StoreService::waits() const {
    StoreWaits told = backend_->waits();
    told.clients = connected();
    return told;
}

void StoreService::accept_again() {
    accept_again_.reset();
    if (!spare_.is_open()) {
        spare_ = open_spare();
    }
    static_cast<void>(control(epoll_fd_, EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListenerEvent));
}

void StoreService::adopt(UniqueFd fd, std::string_view first_bytes) {
    const std::optional<sockaddr_storage> peer = peer_of(fd.get());
    if (!peer) {
        return;  // The client is gone.
    }
    if (StoreSession* session = take(std::move(fd), *peer)) {
        session->on_first_bytes(first_bytes);
        settle();
    }
    closed_.clear();
}

/// The session of a client that is admitted. It may be closed at once, but exists until closed_ is
/// cleared.
StoreSession* StoreService::take(UniqueFd fd, const sockaddr_storage& peer) {
    if (!admission_.admits(peer)) {
        refuse(peer, earlier_.admits(peer)
                         ? "it is the address of a node of an earlier generation, not of this one; "
                           "end what still runs there, or start ddprun there again"
                         : "it is not the address of a node of this generation; if it belongs to "
                           "the job (NAT, a sidecar), start with --store-admit any");
        return nullptr;
    }
    if (const std::size_t direct = connected() - relayed_; direct >= limits_.store_clients_max) {
        refuse(peer, fmt::format("{} clients are connected, and that is the limit; with "
                                 "--store-relay on a node needs one connection",
                                 direct));
        return nullptr;
    }
    const StoreClient client = take_number();
    auto session = std::make_unique<StoreSession>(*this, client, std::move(fd), limits_);
    StoreSession* const taken = session.get();
    clients_[client.value()].session = std::move(session);
    settle();
    return taken;
}

/// Returns a number for an admitted client.
StoreClient StoreService::take_number() {
    if (free_numbers_.empty()) {
        free_numbers_.emplace_back(static_cast<std::uint32_t>(clients_.size()));
        clients_.emplace_back();
    }
    const StoreClient client = free_numbers_.back();
    free_numbers_.pop_back();
    ++counts_.admitted;
    ++counts_.connected;
    if (init_.is_open()) {
        init_.note_connected(std::chrono::steady_clock::now(), connected());
    }
    return client;
}

void StoreService::refuse(const sockaddr_storage& peer, const std::string& reason) {
    ++counts_.refused;
    const std::string address = address_text(peer);
    if (named_.size() < limits_.store_refusals_named_max && named_.insert(address).second) {
        say(fmt::format("store: refused a client from {}: {}", address, reason));
    }
}

void StoreService::cut_off(StoreClient client, const Error& reason) {
    ++counts_.cut_off;
    if (const Instant now = std::chrono::steady_clock::now(); now >= next_cut_off_said_) {
        const std::string more =
            cut_offs_unsaid_ == 0 ? "" : fmt::format(" (and {} before it)", cut_offs_unsaid_);
        const Client& who = clients_[client.value()];
        const StoreSession& session = who.session ? *who.session : *who.relay;
        say(fmt::format("store: disconnected a client from {}: {}{}", session.peer_text(),
                        reason.what, more));
        next_cut_off_said_ = now + kBetweenLines;
        cut_offs_unsaid_ = 0;
    } else {
        ++cut_offs_unsaid_;
    }
    drop(client);
}

/// Only this thread counts: others read.
Result<void> StoreService::handle(StoreClient client, std::string_view request,
                                  const std::shared_ptr<const void>& owner) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    const auto add = [](std::atomic<std::uint64_t>& sum, std::uint64_t more) {
        sum.store(sum.load(kRelaxed) + more, kRelaxed);
    };
    auto& operation = counts_.operations.at(static_cast<std::uint8_t>(request.front()));
    const bool is_timed = operation.count.load(kRelaxed) % kStoreTimedOf == 0;
    add(operation.count, 1);
    if (init_.is_open() && InitTraffic::is_of_default_group(request)) {
        init_.note_of_default_group(std::chrono::steady_clock::now(), client);
    }
    if (!is_timed) {
        return backend_->handle(client, request, replies_, owner);
    }
    const Instant begin = std::chrono::steady_clock::now();
    Result<void> done = backend_->handle(client, request, replies_, owner);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
    add(operation.timed, 1);
    add(operation.time_ns, static_cast<std::uint64_t>(took.count()));
    return done;
}

void StoreService::settle() {
    while (!replies_.empty() || !dropped_.empty() || !owed_frames_.empty()) {
        send_replies();
        send_frames();
        replies_.clear();
        disconnect_dropped();
    }
}

void StoreService::settle_unless_few() {
    if (!dropped_.empty() || replies_.pieces().size() >= kRepliesAtOnce ||
        replies_.size() >= kReplyBytesAtOnce) {
        settle();
    }
}

void StoreService::send_replies() {
    std::string_view bytes = replies_.bytes();
    for (const StoreReplies::Piece& piece : replies_.pieces()) {
        // The client is gone if the last round dropped it, in which others caused this reply.
        const Client& client = clients_[piece.client.value()];
        if (client.session && !client.session->send(bytes.substr(0, piece.size), piece.shared)) {
            drop(piece.client);
        } else if (client.relay != nullptr) {
            owe_frame(client, bytes.substr(0, piece.size), piece.shared);
        }
        if (piece.is_last) {
            drop(piece.client);
        }
        bytes.remove_prefix(piece.size);
    }
}

void StoreService::disconnect_dropped() {
    for (const StoreClient number : std::exchange(dropped_, {})) {
        Client client = std::exchange(clients_[number.value()], {});
        if (!client.session && client.relay == nullptr) {
            continue;  // It has been dropped twice.
        }
        free_numbers_.push_back(number);
        --counts_.connected;
        backend_->disconnected(number, replies_);
        if (client.relay != nullptr) {
            --relayed_;
            forget_relayed(client);
        } else {
            client.session->close();
            forget_relay(*client.session);
            closed_.push_back(std::move(client.session));
        }
    }
}

// Clients of relays: requests of many clients in, frames of replies out.

Result<void> StoreService::handle_relayed(StoreSession& relay, std::string_view request,
                                          const std::shared_ptr<const void>& owner) {
    FieldReader fields(request);
    std::vector<std::uint32_t> numbers(fields.u32());
    for (std::uint32_t& number : numbers) {
        number = fields.u32();
    }
    const std::string_view asked = fields.rest();
    const StoreOpcode opcode{static_cast<std::uint8_t>(asked.front())};
    for (const std::uint32_t number : numbers) {
        if (opcode == StoreOpcode::Enter) {
            if (Result<void> entered = enter(relay, number); !entered) {
                return entered;
            }
            continue;
        }
        // Without a client: this side disconnected it, which the relay does not know yet.
        const std::optional<StoreClient> client = relay.relayed().find(number);
        if (!client) {
            continue;
        }
        if (opcode == StoreOpcode::Leave) {
            relay.relayed().leave(number);
            drop(*client);
        } else if (const Result<void> done = handle(*client, asked, owner); !done) {
            relay.relayed().leave(number);  // Its later requests are ignored.
            cut_off(*client, done.error());
        } else if (replies_.size() > limits_.send_queue_bytes_max) {
            settle();
            if (!relay.is_open()) {
                break;
            }
        }
    }
    return {};
}

/// Failure is a mistake of the relay's; a client too many is only disconnected.
Result<void> StoreService::enter(StoreSession& relay, std::uint32_t number) {
    if (relay.relayed().find(number)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("client {} of a relay has come twice", number)};
    }
    const StoreClient client = take_number();
    static_cast<void>(relay.relayed().enter(number, client));
    clients_[client.value()] = {.session = nullptr, .relay = &relay, .number = number};
    if (++relayed_ > limits_.store_relayed_max) {
        relay.relayed().leave(number);
        cut_off(client,
                Error{ErrorCode::LimitExceeded,
                      fmt::format("{} clients of relays are connected, and that is the limit",
                                  limits_.store_relayed_max)});
    }
    return {};
}

void StoreService::owe_frame(const Client& client, std::string_view bytes,
                             const SharedText& shared) {
    if (client.relay->relayed().reply(client.number, bytes, shared)) {
        owed_frames_.push_back(client.relay);
    }
}

void StoreService::send_frames() {
    for (StoreSession* const relay : std::exchange(owed_frames_, {})) {
        if (!relay->send_frames()) {
            drop(relay->client());
        }
    }
}

/// The relay is told, also when it has said so itself.
void StoreService::forget_relayed(const Client& client) {
    if (client.relay->is_open()) {
        owe_frame(client, {}, {});
    }
}

/// The connection of `relay` is closed: with it all that came through it are gone.
void StoreService::forget_relay(StoreSession& relay) {
    if (relay.is_relay()) {
        std::erase(owed_frames_, &relay);
        for (const StoreClient client : relay.relayed().all()) {
            drop(client);
        }
    }
}

}  // namespace ddprun::rdzv
