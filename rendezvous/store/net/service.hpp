#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/core/backend.hpp"
#include "rendezvous/store/core/byte_budget.hpp"
#include "rendezvous/store/core/stalls.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/store/protocol/replies.hpp"

namespace ddprun::rdzv {

class StoreSession;

/// One generation's store, or a relay to it, on the store's thread: accepts and admits clients,
/// carries bytes between them and the backend. It registers its descriptors in an epoll set with
/// numbers from kFirstEvent on, clients edge-triggered, and is told when one of them has something.
class StoreService {
public:
    static constexpr std::uint64_t kFirstEvent = 1;

    /// The references outlive the service. Accepts on `socket`, if it is one, from the next event
    /// on.
    StoreService(int epoll_fd, const Limits& limits, const StoreServer::Say& say,
                 SharedStoreCounts& counts, std::unique_ptr<StoreBackend> backend, UniqueFd socket,
                 const std::vector<std::string>& admitted, Admission earlier,
                 std::size_t expected_clients);
    /// Closes the socket, then disconnects every client.
    ~StoreService();
    StoreService(const StoreService&) = delete;
    StoreService& operator=(const StoreService&) = delete;

    /// Handles the events of one epoll_wait(); events of other descriptors are skipped.
    void on_turn(std::span<const epoll_event> events);

    /// When on_time() is to be called, if ever.
    [[nodiscard]] std::optional<Instant> next_deadline() const;
    void on_time(Instant now);

    [[nodiscard]] const Admission& admission() const { return admission_; }

    [[nodiscard]] StoreWaits waits() const;

    /// Takes over a client that is connected already and from which `first_bytes` have been read.
    void adopt(UniqueFd fd, std::string_view first_bytes);

    // For sessions:
    /// Carries out one request. Failure: the session calls cut_off().
    [[nodiscard]] Result<void> handle(StoreClient client, std::string_view request,
                                      const std::shared_ptr<const void>& owner);
    /// The same for a request that begins with a list of clients of `relay`.
    [[nodiscard]] Result<void> handle_relayed(StoreSession& relay, std::string_view request,
                                              const std::shared_ptr<const void>& owner);
    [[nodiscard]] bool takes_relays() const { return backend_->takes_relays(); }
    [[nodiscard]] bool has_room() const { return has_room_; }
    [[nodiscard]] std::size_t reply_bytes() const { return replies_.size(); }
    /// Sends all replies and closes the sessions that drop() named or that failed meanwhile.
    /// Closed sessions live until the event is over.
    void settle();
    /// The same, but a few replies may wait for those of other clients until the turn is over:
    /// receiving and sending several at a time, the processor works in one part of the kernel for
    /// longer, and its caches serve it better.
    void settle_unless_few();
    /// `client` is gone; settle() follows.
    void drop(StoreClient client) { dropped_.push_back(client); }
    /// `client` is disconnected because of `reason`; settle() follows.
    void cut_off(StoreClient client, const Error& reason);
    /// Changes what the epoll set reports of `client` from `before` to `wanted`; 0 is nothing.
    void watch(StoreClient client, int fd, std::uint32_t before, std::uint32_t wanted);
    /// The time that clients have to say VALIDATE, and to go on when they have stopped.
    [[nodiscard]] StoreStalls& stalls() { return stalls_; }
    /// Memory of all sessions for incomplete requests, and for copies of replies that are not sent.
    [[nodiscard]] ByteBudget& partial() { return partial_; }
    [[nodiscard]] ByteBudget& unread() { return unread_; }
    /// Buffer that sessions read into. Valid until the session returns.
    [[nodiscard]] std::array<char, 65536>& scratch() { return scratch_; }

private:
    /// A holder of a client number: a connection here, or a client of the relay on another one.
    struct Client {
        std::unique_ptr<StoreSession> session;
        StoreSession* relay = nullptr;
        std::uint32_t number = 0;  ///< the relay's for it
    };

    void accept_clients();
    [[nodiscard]] bool refuse_with_spare();
    void pause_accepting();
    StoreSession* take(UniqueFd fd, const sockaddr_storage& peer);
    [[nodiscard]] std::size_t connected() const { return clients_.size() - free_numbers_.size(); }
    [[nodiscard]] StoreClient take_number();
    [[nodiscard]] Result<void> enter(StoreSession& relay, std::uint32_t number);
    void send_replies();
    void owe_frame(const Client& client, std::string_view bytes, const SharedText& shared);
    void send_frames();
    void disconnect_dropped();
    void forget_relayed(const Client& client);
    void forget_relay(StoreSession& relay);
    void look_for_room();
    void accept_again();
    void refuse(const sockaddr_storage& peer, const std::string& reason);
    void say(std::string line);

    const int epoll_fd_;
    const Limits& limits_;
    const StoreServer::Say& say_;
    SharedStoreCounts& counts_;
    UniqueFd listener_;
    UniqueFd spare_;                       ///< given up to refuse a client when descriptors run out
    std::optional<Instant> accept_again_;  ///< accepting pauses until then
    ByteBudget partial_;
    ByteBudget unread_;
    Admission admission_;
    const Admission earlier_;  ///< who was admitted to the stores before this one
    const std::unique_ptr<StoreBackend> backend_;
    bool has_room_ = true;  ///< of the backend, as it was last asked
    StoreReplies replies_;
    std::vector<Client> clients_;  ///< by client number
    std::vector<StoreClient> free_numbers_;
    std::size_t relayed_ = 0;  ///< of these clients, those of relays, which have no connection
    std::vector<StoreClient> dropped_;
    std::vector<StoreSession*> owed_frames_;             ///< relays that are to be sent some
    std::vector<std::unique_ptr<StoreSession>> closed_;  ///< until the event is over
    std::set<std::string> named_;                        ///< addresses whose refusal was said
    Instant next_cut_off_said_;                          ///< a line a second
    std::uint64_t cut_offs_unsaid_ = 0;
    StoreStalls stalls_;
    InitTraffic init_;
    std::array<char, 65536> scratch_;
};

}  // namespace ddprun::rdzv
