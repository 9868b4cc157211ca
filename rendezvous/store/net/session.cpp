#include "rendezvous/store/net/session.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint32_t kEnding = EPOLLRDHUP | EPOLLHUP | EPOLLERR;

/// `text` names the limit.
Error over(const char* text, std::uint64_t max) {
    return Error{ErrorCode::LimitExceeded, fmt::format(fmt::runtime(text), max)};
}

}  // namespace

StoreSession::StoreSession(StoreService& service, StoreClient client, UniqueFd socket,
                           const Limits& limits)
    : service_(service),
      limits_(limits),
      socket_(std::move(socket)),
      client_(client),
      splitter_(limits, service.takes_relays() ? RequestSplitter::Relays::Taken
                                               : RequestSplitter::Relays::Refused) {
    update_watch();
    update_stall();
}

StoreSession::~StoreSession() {
    service_.partial().give_back(capacity_);
    service_.unread().give_back(unsent_.copied());
}

void StoreSession::close() {
    service_.stalls().owe(stall_, client_, {}, {});
    // Closing alone is not enough while a child that was just forked holds a duplicate.
    service_.watch(client_, socket_.get(), watched_, 0);
    socket_.reset();
}

std::string StoreSession::peer_text() const {
    return address_text(peer_of(socket_.get()).value_or(sockaddr_storage{}));
}

void StoreSession::on_first_bytes(std::string_view bytes) {
    take_in(bytes);
    if (socket_.is_open()) {
        update_watch();
        update_stall();
    }
}

void StoreSession::on_event(std::uint32_t events) {
    if (!unsent_.empty()) {
        const std::size_t copied = unsent_.copied();
        const bool is_there = unsent_.send(socket_.get());
        service_.unread().give_back(copied - unsent_.copied());
        if (!is_there) {
            service_.drop(client_);
            service_.settle();
            return;
        }
        // Requests may have been left lying when the client stopped reading.
        on_room();
    }
    if (socket_.is_open() && !is_paused() && (events & ~std::uint32_t{EPOLLOUT}) != 0) {
        read((events & kEnding) != 0);
    }
    if (socket_.is_open()) {
        update_watch();
        update_stall();
    }
}

void StoreSession::on_room() {
    if (!is_paused() && filled_ > 0) {
        take_in({buffer_.get(), filled_});
    }
    if (socket_.is_open()) {
        update_watch();
        update_stall();
    }
}

/// Reads until there is nothing more, because the epoll set reports only once what has come. If
/// less came than there was room for, nothing more has come, unless the end has (`is_ending`). A
/// client that sends faster than it is read lets the others have their turn after a while.
void StoreSession::read(bool is_ending) {
    constexpr int kReadsPerTurn = 16;
    for (int turn = 0; turn < kReadsPerTurn; ++turn) {
        char* const begin = filled_ > 0 ? buffer_.get() : service_.scratch().data();
        const std::size_t capacity = filled_ > 0 ? capacity_ : service_.scratch().size();
        const std::size_t room = capacity - filled_;
        const ssize_t count = ::recv(socket_.get(), begin + filled_, room, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (count <= 0) {
            service_.drop(client_);
            service_.settle();
            return;
        }
        take_in({begin, filled_ + static_cast<std::size_t>(count)});
        if (!socket_.is_open() || is_paused() ||
            (static_cast<std::size_t>(count) < room && !is_ending)) {
            return;
        }
    }
    is_behind_ = true;
}

/// Handles what is complete in `bytes`, which lie in the buffer or in the service's scratch, and
/// keeps the rest. The session may be closed afterwards.
void StoreSession::take_in(std::string_view bytes) {
    std::shared_ptr<const void> owner;
    const std::size_t handled = handle_requests(bytes, owner);
    keep(bytes.substr(handled));
}

/// Handles what is complete, unless the client leaves its replies lying, and returns how many bytes
/// that was. A buffer that holds one big request becomes `owner`'s, so that the store need not copy
/// the value out of it.
std::size_t StoreSession::handle_requests(std::string_view bytes,
                                          std::shared_ptr<const void>& owner) {
    std::size_t handled = 0;
    while (socket_.is_open() && !is_paused()) {
        const Result<std::size_t> size = splitter_.split(bytes.substr(handled));
        if (!size) {
            service_.cut_off(client_, size.error());
            break;
        }
        if (*size == 0) {
            break;
        }
        const bool is_first_in_buffer =
            handled == 0 && buffer_ != nullptr && bytes.data() == buffer_.get();
        if (is_first_in_buffer && *size >= kSharedValueBytesMin && capacity_ <= 2 * *size) {
            owner = std::shared_ptr<const void>(buffer_.release(), std::free);
            give_back_buffer();
        }
        const Result<void> done =
            handle(bytes.substr(handled, *size), handled == 0 ? owner : nullptr);
        handled += *size;
        ++requests_;
        if (!done) {
            service_.cut_off(client_, done.error());
            break;
        }
        if (service_.reply_bytes() > limits_.send_queue_bytes_max) {
            service_.settle();
        }
    }
    service_.settle_unless_few();
    return handled;
}

Result<void> StoreSession::handle(std::string_view request,
                                  const std::shared_ptr<const void>& owner) {
    if (relayed_ != nullptr) {
        return service_.handle_relayed(*this, request, owner);
    }
    if (splitter_.is_relay()) {  // As this request has said.
        relayed_ = std::make_unique<RelayedClients>(frame_clients_max(limits_));
        return {};
    }
    return service_.handle(client_, request, owner);
}

/// Keeps `rest`, which is in the buffer, in the service's scratch, or in memory given away.
void StoreSession::keep(std::string_view rest) {
    if (rest.empty()) {
        give_back_buffer();
    } else if (rest.size() < capacity_) {
        std::memmove(buffer_.get(), rest.data(), rest.size());
    } else {
        const bool is_in_buffer = buffer_ != nullptr;
        const std::size_t wanted = capacity_for(rest.size());
        if (!service_.partial().change(capacity_, wanted)) {
            service_.cut_off(client_, over("its request is incomplete, and incomplete requests of "
                                           "all clients take more than {} bytes",
                                           service_.partial().max()));
            service_.settle();
            return;
        }
        capacity_ = wanted;
        buffer_.reset(static_cast<char*>(std::realloc(buffer_.release(), capacity_)));
        DDP_CHECK(buffer_ != nullptr, capacity_);
        if (!is_in_buffer) {
            std::memcpy(buffer_.get(), rest.data(), rest.size());
        }
    }
    filled_ = rest.size();
}

void StoreSession::give_back_buffer() {
    buffer_.reset();
    service_.partial().give_back(std::exchange(capacity_, 0));
}

/// Room for the rest of the request, but in proportion to what has arrived: an announced length
/// alone gets no memory. No request needs more than the limit.
std::size_t StoreSession::capacity_for(std::size_t arrived) const {
    constexpr std::size_t kBytesMin = 1024;
    constexpr std::size_t kGrowthMax = 16;
    constexpr std::size_t kNextRequestBytes = 512;  // Reads the following request, too.
    const std::size_t wanted =
        std::clamp(splitter_.announced() + kNextRequestBytes, 2 * arrived, kGrowthMax * arrived);
    const std::size_t most = std::max<std::size_t>(limits_.store_request_bytes_max, arrived);
    return std::max(kBytesMin, std::min(wanted, most + kNextRequestBytes));
}

bool StoreSession::send(std::string_view bytes, const SharedText& shared) {
    const std::size_t wanted = unsent_.size() + bytes.size() + shared.bytes.size();
    if (wanted > unsent_bytes_max() && !unsent_.empty()) {
        service_.cut_off(client_, over("more than {} bytes of replies unread", unsent_bytes_max()));
        return true;
    }
    // Nearly always the kernel takes everything, and the bytes are never copied here.
    const bool is_behind = !unsent_.empty();
    if (!is_behind && !send_some(socket_.get(), bytes)) {
        return false;
    }
    if (!bytes.empty()) {
        if (!service_.unread().change(0, bytes.size())) {
            service_.cut_off(client_, over("it does not read its replies, and those that all "
                                           "clients leave unread take more than {} bytes",
                                           service_.unread().max()));
            return true;
        }
        unsent_.add(bytes);
    }
    if (shared.owner != nullptr) {
        unsent_.add(shared);
        if (!is_behind && bytes.empty() && !unsent_.send(socket_.get())) {
            return false;
        }
    }
    if (!is_behind && !unsent_.empty()) {
        update_watch();
        update_stall();
    }
    return true;
}

/// A relay is given another reply only when the ones before are nearly read, but on top of those
/// come the ends of waits.
std::size_t StoreSession::unsent_bytes_max() const {
    return (relayed_ != nullptr ? 2 : 1) * limits_.store_reply_bytes_max;
}

bool StoreSession::send_frames() {
    for (const RelayFrames& frames : relayed_->take_frames()) {
        if (!send(frames.bytes, frames.shared)) {
            return false;
        }
    }
    return true;
}

void StoreSession::update_stall() {
    StoreDebt debt;
    if (!splitter_.is_open()) {
        debt.kind = StoreDebt::Kind::Greeting;
    } else if (!unsent_.empty()) {
        debt = {.kind = StoreDebt::Kind::Replies, .number = unsent_.sent()};
    } else if (filled_ > 0) {
        debt = {.kind = StoreDebt::Kind::Request, .number = requests_};
    }
    if (debt != stall_.debt()) {  // The clock is read only then.
        service_.stalls().owe(stall_, client_, debt, std::chrono::steady_clock::now());
    }
}

/// Every change makes the epoll set look anew, so nothing that came meanwhile is missed.
void StoreSession::update_watch() {
    const std::uint32_t wanted = EPOLLET |
                                 (is_paused() ? 0U : std::uint32_t{EPOLLIN | EPOLLRDHUP}) |
                                 (unsent_.empty() ? 0U : std::uint32_t{EPOLLOUT});
    if (wanted != watched_ || is_behind_) {
        is_behind_ = false;
        service_.watch(client_, socket_.get(), watched_, wanted);
        watched_ = wanted;
    }
}

}  // namespace ddprun::rdzv
