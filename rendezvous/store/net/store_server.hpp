#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/core/backend.hpp"
#include "rendezvous/store/core/init_traffic.hpp"
#include "rendezvous/store/core/store_waits.hpp"
#include "rendezvous/store/net/busy_poll.hpp"
#include "rendezvous/store/net/socket.hpp"
#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

/// Requests of one kind.
struct StoreOperationCount {
    std::uint64_t count = 0;
    std::uint64_t timed = 0;    ///< of these: one of kStoreTimedOf
    std::uint64_t time_ns = 0;  ///< to carry these out
};

/// Reading the clock twice for each request would cost more than many a request does.
inline constexpr std::uint64_t kStoreTimedOf = 16;

inline constexpr std::size_t kStoreKinds = static_cast<std::size_t>(StoreOpcode::Barrier) + 1;

/// Counts over all stores of a server since the server was made.
struct StoreCounts {
    std::uint64_t admitted = 0;   ///< clients
    std::uint64_t refused = 0;    ///< clients that came from elsewhere, or were too many
    std::uint64_t cut_off = 0;    ///< clients that broke the protocol or a limit
    std::uint64_t connected = 0;  ///< clients of this moment
    std::array<StoreOperationCount, kStoreKinds> operations{};  ///< by StoreOpcode
    /// Moments of the newest store, from InitTraffic; Instant::min(): not yet.
    Instant all_here = Instant::min();
    Instant group_ready = Instant::min();
};

/// The counts, written by the store's thread and read by others.
struct SharedStoreCounts {
    std::atomic<std::uint64_t> admitted{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> cut_off{0};
    std::atomic<std::uint64_t> connected{0};
    struct Operation {
        std::atomic<std::uint64_t> count{0};
        std::atomic<std::uint64_t> timed{0};
        std::atomic<std::uint64_t> time_ns{0};
    };
    std::array<Operation, kStoreKinds> operations;
    SharedInitTraffic init;
};

class StoreService;

/// Serves one generation's store, or what stands in for it, at a time on its own thread, and
/// outlives whatever happens there: service, sessions and backend hold plain references. Clients
/// that connected to the socket before serve() wait in the kernel's backlog and are answered then.
/// The thread is started by the first serve(). All methods are called by one (other) thread and
/// return at once, except the destructor, which disconnects every client and joins.
class StoreServer {
public:
    /// Takes one line for people. It is called on the store's thread, so it hands the line on and
    /// returns; what it uses outlives the server.
    using Say = std::function<void(std::string line)>;

    explicit StoreServer(Limits limits, Say say = {});
    ~StoreServer();

    /// Has the descriptors that serving takes, so that what serves later cannot fail for one.
    [[nodiscard]] Result<void> prepare();
    StoreServer(const StoreServer&) = delete;
    StoreServer& operator=(const StoreServer&) = delete;

    /// Starts a fresh, empty store on `socket`, a listening descriptor; an earlier one is closed
    /// first. Clients from addresses outside `admitted` (numeric; an IPv4 address and its
    /// IPv4-mapped IPv6 form are one) are disconnected, counted, and named once per address
    /// through `say`, apart from each other those that an earlier store has admitted; an empty list
    /// admits all. Others may hold duplicates of the descriptor: the socket itself is never shut
    /// down, only this descriptor is closed.
    ///
    /// When `expected_clients`, the world size, is more than this machine lets in at once or this
    /// process may have open, a line says what to do.
    void serve(UniqueFd socket, std::vector<std::string> admitted,
               std::size_t expected_clients = 0);

    /// Has `backend` carry out what clients of `socket` ask for, in place of a store; all addresses
    /// are admitted.
    void serve_with(std::unique_ptr<StoreBackend> backend, UniqueFd socket);

    /// Starts a fresh, empty store without a socket of its own: its clients come through adopt().
    void serve_adopted(std::vector<std::string> admitted, std::size_t expected_clients = 0);

    /// Hands over a connected client of the store that was last served, on whatever port it came
    /// in, and what has been read from it. It is as accepted from a socket with
    /// set_inherited_options(). It is admitted or not as others are; it is disconnected when
    /// nothing is served.
    void adopt(UniqueFd client, std::string first_bytes);

    /// Disconnects all clients, closes the socket, forgets all keys.
    void close();

    /// May be called by any thread.
    [[nodiscard]] StoreCounts counts() const;

    /// Calls `answer` once, on the store's thread, with the waiting clients of the newest store;
    /// never if no store was served, if another question follows first, or the server is gone. The
    /// objects that `answer` uses outlive the server.
    void ask_who_waits(std::function<void(StoreWaits)> answer);

    /// Ends the watch for the arrival and connection of the newest store's clients.
    void end_init() { counts_.init.is_over = true; }

private:
    struct Serve {
        std::unique_ptr<StoreBackend> backend;
        UniqueFd socket;  ///< to be served, if any
        std::vector<std::string> admitted;
        std::size_t expected_clients = 0;
    };
    struct Close {};
    struct End {};
    using Order = std::variant<Serve, Close, End>;
    struct Adopted {
        UniqueFd fd;
        std::string first_bytes;
    };

    void start(Serve order);
    void leave(Order order);
    void wake();
    void start_thread();
    void run();
    [[nodiscard]] std::span<epoll_event> await_events(std::span<epoll_event> events);
    [[nodiscard]] std::size_t look(std::span<epoll_event> events, int patience_ms);
    [[nodiscard]] int patience_ms() const;
    struct Left {
        std::optional<Order> order;
        std::vector<Adopted> adopted;
        std::function<void(StoreWaits)> who_waits;
    };
    [[nodiscard]] Left take_left();
    [[nodiscard]] bool carry_out(Order order);

    const Limits limits_;
    const Say say_;
    SharedStoreCounts counts_;
    UniqueFd epoll_;
    UniqueFd wake_;
    std::mutex mutex_;
    /// The last one that was not carried out yet. A newer one replaces it, as carrying out the
    /// older one first would make no difference. Guarded by mutex_.
    std::optional<Order> order_;
    std::vector<Adopted> adopted_;               ///< guarded by mutex_
    std::function<void(StoreWaits)> who_waits_;  ///< the last one that asks; guarded by mutex_
    // Only the store's thread touches these. They outlive all that happens on it.
    Admission earlier_;  ///< of the stores before
    StoreBusyPoll busy_poll_{std::thread::hardware_concurrency() > 1};
    std::unique_ptr<StoreService> service_;
    std::thread thread_;
};

}  // namespace ddprun::rdzv
