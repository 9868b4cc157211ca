#include "rendezvous/election/leadership.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "rendezvous/election/leader_seat.hpp"
#include "rendezvous/etcd/etcd_client.hpp"
#include "rendezvous/journal/etcd_journal.hpp"
#include "rendezvous/journal/etcd_records.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// A watch that is silent for so many leases is begun anew, at another etcd: that one may hang.
constexpr int kWatchLeases = 4;
/// While etcd does not answer it is asked at least this often within one lease: its own election
/// may be over at any moment, and until we know that nobody decides.
constexpr int kTriesPerLease = 16;

Instant now() {
    return std::chrono::steady_clock::now();
}

}  // namespace

/// run() is the one coroutine that competes; load() reads the records beside it while the lease is
/// kept. Each has its own connection to etcd, and so have the watch and the journal.
class Leadership::Impl : public std::enable_shared_from_this<Impl> {
public:
    Impl(asio::io_context& io, LeadershipOptions options)
        : io_(io),
          options_(std::move(options)),
          keys_(etcd_keys(options_.cluster)),
          lease_(io, options_.etcds, options_.limits),
          watch_client_(std::make_shared<EtcdClient>(io, options_.etcds, options_.limits)),
          journal_(std::make_shared<EtcdJournal>(io, options_.etcds, keys_, options_.limits)),
          pause_(io),
          prolong_(io),
          reload_(io),
          backoff_(options_.limits.reconnect_backoff_min) {}

    void start(LeadershipEvents events);
    void stop(std::function<void()> done);
    void abandon();

    [[nodiscard]] bool is_leading(Instant at) const { return is_told_ && at < leads_until(); }
    [[nodiscard]] Instant leads_until() const {
        return is_reigning_ && !is_deposed_ ? lease_.until() : Instant::min();
    }
    [[nodiscard]] Journal& journal() { return *journal_; }

private:
    using Self = std::shared_ptr<Impl>;

    static asio::awaitable<void> run(Self self);
    static asio::awaitable<void> reign(Self self, std::uint64_t term);
    static asio::awaitable<void> keep_lease(Self self);
    static asio::awaitable<void> load(Self self, std::shared_ptr<EtcdClient> client,
                                      std::uint64_t term);
    static asio::awaitable<bool> follow(Self self, EtcdEntry leader, std::uint64_t revision);
    static asio::awaitable<void> wait_a_little(Self self);

    void begin_leading(std::uint64_t term, EtcdRecords records);
    void tell_followed(const std::string& leader);
    void depose();
    void note_trouble(const Error& error);
    void note_success();
    void cancel_all();

    asio::io_context& io_;
    const LeadershipOptions options_;
    const EtcdKeys keys_;
    LeaderLease lease_;
    const std::shared_ptr<EtcdClient> watch_client_;
    std::shared_ptr<EtcdClient> records_client_;  ///< of this reign
    const std::shared_ptr<EtcdJournal> journal_;
    asio::steady_timer pause_;
    asio::steady_timer prolong_;
    asio::steady_timer reload_;
    LeadershipEvents events_;
    std::function<void()> done_;
    std::optional<std::string> followed_;  ///< as told last
    std::string trouble_;                  ///< as said last
    std::string why_lost_;
    Milliseconds backoff_;
    bool is_reigning_ = false;  ///< the key is ours
    bool is_told_ = false;      ///< leads() was called in this reign
    bool is_deposed_ = false;   ///< etcd said so before the lease was over
    bool is_running_ = false;
    bool is_stopping_ = false;
    bool is_abandoned_ = false;
};

// ----------------------------------------------------------------------------- called by the owner

void Leadership::Impl::start(LeadershipEvents events) {
    DDP_CHECK(!is_running_ && !is_stopping_);
    events_ = std::move(events);
    is_running_ = true;
    asio::co_spawn(io_, run(shared_from_this()), asio::detached);
}

void Leadership::Impl::stop(std::function<void()> done) {
    DDP_CHECK(!is_stopping_);
    is_stopping_ = true;
    if (!is_running_) {
        asio::post(io_, std::move(done));
        return;
    }
    done_ = std::move(done);
    cancel_all();
}

void Leadership::Impl::abandon() {
    is_stopping_ = true;
    is_abandoned_ = true;
    done_ = nullptr;
    cancel_all();
}

void Leadership::Impl::cancel_all() {
    is_told_ = false;
    journal_->close();
    lease_.close();
    watch_client_->close();
    if (records_client_) {
        records_client_->close();
    }
    pause_.cancel();
    prolong_.cancel();
    reload_.cancel();
}

// --------------------------------------------------------------------------------------- competing

asio::awaitable<void> Leadership::Impl::run(Self self) {
    // No event may come from inside start().
    co_await asio::post(self->io_, asio::use_awaitable);
    bool is_vacant = false;
    while (!self->is_stopping_) {
        Result<LeaderSeat> seat = LeaderSeat{};
        if (is_vacant) {
            seat = co_await campaign(self->lease_, self->keys_.leader, self->options_.advertised);
        } else {
            seat = co_await look(self->lease_, self->keys_.leader);
        }
        if (self->is_stopping_) {
            break;
        }
        is_vacant = false;
        if (!seat) {
            self->note_trouble(seat.error());
            co_await wait_a_little(self);
        } else if (!seat->holder) {
            is_vacant = true;
        } else if (seat->is_held_by(self->lease_)) {
            co_await reign(self, seat->holder->create_revision);
        } else {
            is_vacant = co_await follow(self, *seat->holder, seat->revision);
        }
    }
    if (!self->is_abandoned_) {
        co_await self->lease_.give_up();
    }
    if (const std::function<void()> done = std::exchange(self->done_, nullptr)) {
        done();
    }
}

// ----------------------------------------------------------------------------------------- leading

/// The key is ours. Returns when that is over, as far as we can know.
asio::awaitable<void> Leadership::Impl::reign(Self self, std::uint64_t term) {
    if (now() >= self->lease_.until()) {
        // Etcd was away for longer than the lease, and has kept it for us all the same.
        const Instant until = now() + self->options_.limits.etcd_timeout;
        const Result<void> prolonged = co_await self->lease_.prolong(until);
        if (self->is_stopping_) {
            co_return;
        }
        if (!prolonged) {
            self->note_trouble(prolonged.error());
            co_await wait_a_little(self);
            co_return;
        }
    }
    self->is_reigning_ = true;
    self->is_deposed_ = false;
    self->why_lost_ = "etcd was not heard from for a whole lease";
    self->followed_.reset();
    const auto client =
        std::make_shared<EtcdClient>(self->io_, self->options_.etcds, self->options_.limits);
    self->records_client_ = client;
    asio::co_spawn(self->io_, load(self, client, term), asio::detached);
    co_await keep_lease(self);
    self->is_reigning_ = false;
    const bool was_told = std::exchange(self->is_told_, false);
    client->close();
    if (self->is_stopping_) {
        co_return;
    }
    self->journal_->end_term();
    if (was_told && self->events_.lost) {
        self->events_.lost(self->why_lost_);
    }
}

asio::awaitable<void> Leadership::Impl::keep_lease(Self self) {
    while (!self->is_stopping_ && self->lease_.exists() && now() < self->leads_until()) {
        self->prolong_.expires_at(self->lease_.prolongation_due());
        const auto [cancelled] =
            co_await self->prolong_.async_wait(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(cancelled);  // the loop's condition tells
        const Instant until = self->leads_until();
        if (self->is_stopping_ || now() >= until) {
            break;
        }
        const Result<void> prolonged = co_await self->lease_.prolong(until);
        if (self->is_stopping_) {
            break;
        }
        if (prolonged) {
            self->note_success();
            continue;
        }
        self->note_trouble(prolonged.error());
        if (!self->is_deposed_) {
            self->why_lost_ = prolonged.error().what;
        }
        if (self->lease_.exists() && now() < until) {
            co_await wait_a_little(self);
        }
    }
}

asio::awaitable<void> Leadership::Impl::load(Self self, std::shared_ptr<EtcdClient> client,
                                             std::uint64_t term) {
    std::function<Instant()> until = [impl = self.get()] { return impl->leads_until(); };
    while (true) {
        Result<EtcdRecords> records =
            co_await read_etcd_records(client, self->keys_.runs, self->options_.limits, until);
        // Another reign may have begun meanwhile.
        if (self->is_stopping_ || self->records_client_ != client || now() >= self->leads_until()) {
            co_return;
        }
        if (records) {
            self->begin_leading(term, *std::move(records));
            co_return;
        }
        self->note_trouble(records.error());
        self->reload_.expires_after(self->lease_.prolong_every());
        const auto [cancelled] =
            co_await self->reload_.async_wait(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(cancelled);
    }
}

void Leadership::Impl::begin_leading(std::uint64_t term, EtcdRecords records) {
    EtcdTerm journal_term;
    journal_term.revision = term;
    journal_term.mod_revisions = std::move(records.mod_revisions);
    journal_term.leads_until = [this] { return leads_until(); };
    journal_term.is_deposed = [this] { depose(); };
    journal_->begin_term(std::move(journal_term));
    is_told_ = true;
    note_success();
    if (events_.leads) {
        events_.leads(term, std::move(records.records));
    }
}

void Leadership::Impl::depose() {
    is_deposed_ = true;
    why_lost_ = "etcd says that another daemon leads, or none";
    prolong_.cancel();
    pause_.cancel();
}

// --------------------------------------------------------------------------------------- following

/// True: the leader's key was deleted.
asio::awaitable<bool> Leadership::Impl::follow(Self self, EtcdEntry leader,
                                               std::uint64_t revision) {
    // Our own endpoint under another lease: we were killed and started again within it.
    const std::string shown =
        leader.value == self->options_.advertised ? std::string() : leader.value;
    self->tell_followed(shown);
    EtcdRequest request = watch_request(self->keys_.leader, revision + 1);
    const Result<void> opened = co_await self->watch_client_->open_stream(std::move(request));
    if (!opened && !self->is_stopping_) {
        self->note_trouble(opened.error());
    }
    const Milliseconds patience = kWatchLeases * self->options_.limits.leader_lease;
    while (opened && !self->is_stopping_) {
        const Result<std::string> line = co_await self->watch_client_->next_line(patience);
        if (!line && line.error().code == ErrorCode::TimedOut) {
            co_return false;
        }
        if (!line) {
            break;
        }
        const Result<EtcdWatched> watched = read_watched(*line);
        if (!watched || watched->is_cancelled) {
            break;
        }
        self->note_success();
        if (watched->is_deleted) {
            self->tell_followed({});  // until somebody has won agents must not be sent to it
            co_return true;
        }
    }
    if (!self->is_stopping_) {
        co_await wait_a_little(self);
    }
    co_return false;
}

// ----------------------------------------------------------------------------------------- helpers

void Leadership::Impl::tell_followed(const std::string& leader) {
    if (followed_ != leader) {
        followed_ = leader;
        if (events_.follows) {
            events_.follows(leader);
        }
    }
}

asio::awaitable<void> Leadership::Impl::wait_a_little(Self self) {
    self->pause_.expires_after(self->backoff_);
    self->backoff_ =
        std::min(2 * self->backoff_, self->options_.limits.leader_lease / kTriesPerLease);
    const auto [cancelled] = co_await self->pause_.async_wait(asio::as_tuple(asio::use_awaitable));
    static_cast<void>(cancelled);  // who waits asks why
}

void Leadership::Impl::note_trouble(const Error& error) {
    if (error.what != trouble_ && !is_stopping_ && events_.say) {
        trouble_ = error.what;
        events_.say(fmt::format("{}; trying again", error.what));
    }
}

void Leadership::Impl::note_success() {
    backoff_ = options_.limits.reconnect_backoff_min;
    if (!trouble_.empty()) {
        trouble_.clear();
        if (!is_stopping_ && events_.say) {
            events_.say("etcd answers again");
        }
    }
}

// ---------------------------------------------------------------------------------- the Leadership

Leadership::Leadership(asio::io_context& io, LeadershipOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

Leadership::~Leadership() {
    impl_->abandon();
}

void Leadership::start(LeadershipEvents events) {
    impl_->start(std::move(events));
}

void Leadership::stop(std::function<void()> done) {
    impl_->stop(std::move(done));
}

bool Leadership::is_leading(Instant now) const {
    return impl_->is_leading(now);
}

Instant Leadership::leads_until() const {
    return impl_->leads_until();
}

Journal& Leadership::journal() {
    return impl_->journal();
}

}  // namespace ddprun::rdzv
