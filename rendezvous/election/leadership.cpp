#include "rendezvous/election/leadership.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/etcd/etcd_client.hpp"
#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/journal/etcd_journal.hpp"
#include "rendezvous/journal/etcd_records.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

Instant now() {
    return std::chrono::steady_clock::now();
}

std::optional<LeaderKey> key_of(const std::optional<EtcdEntry>& entry) {
    if (!entry) {
        return std::nullopt;
    }
    return LeaderKey{
        .term = entry->create_revision, .lease = entry->lease, .endpoint = entry->value};
}

EtcdFailed failed(const Error& error) {
    return EtcdFailed{.why = error.what, .is_refused = error.code == ErrorCode::Refused};
}

// What etcd's answer to each question means.

TermInput answer_to(const LookAtKey& /*asked*/, const std::string& body) {
    const Result<EtcdRange> range = read_range(body);
    if (!range) {
        return failed(range.error());
    }
    const bool is_there = !range->entries.empty();
    return KeySeen{.key = is_there ? key_of(range->entries.front()) : std::nullopt,
                   .revision = range->revision};
}

TermInput answer_to(const GrantLease& /*asked*/, const std::string& body) {
    const Result<EtcdLease> lease = read_grant(body);
    if (!lease) {
        return failed(lease.error());
    }
    return LeaseGranted{.lease = lease->id, .ttl = std::chrono::seconds(lease->ttl_seconds)};
}

TermInput answer_to(const TakeKey& asked, const std::string& body) {
    const Result<EtcdCampaign> campaign = read_campaign(body);
    if (!campaign) {
        return failed(campaign.error());
    }
    KeySeen seen{.key = key_of(campaign->incumbent), .revision = campaign->revision};
    if (campaign->has_won) {
        seen.key = LeaderKey{.term = campaign->revision, .lease = asked.lease, .endpoint = {}};
    }
    return seen;
}

TermInput answer_to(const ProlongLease& /*asked*/, const std::string& body) {
    const Result<EtcdLease> lease = read_keep_alive(body);
    if (!lease) {
        return failed(lease.error());
    }
    return LeaseProlonged{std::chrono::seconds(lease->ttl_seconds)};
}

}  // namespace

/// Carries out what the LeaderTerm asks for. Its questions, the watch, the reading of records and
/// the journal have a connection to etcd each.
class Leadership::Impl : public std::enable_shared_from_this<Impl> {
public:
    Impl(asio::io_context& io, LeadershipOptions options)
        : io_(io),
          options_(std::move(options)),
          keys_(etcd_keys(options_.cluster)),
          term_(options_.advertised, options_.limits),
          client_(std::make_shared<EtcdClient>(io, options_.etcds, options_.limits)),
          watch_client_(std::make_shared<EtcdClient>(io, options_.etcds, options_.limits)),
          journal_(std::make_shared<EtcdJournal>(io, options_.etcds, keys_, options_.limits)),
          timer_(io) {}

    void start(LeadershipEvents events);
    void stop(std::function<void()> done);
    void close();

    [[nodiscard]] bool is_leading(Instant at) const {
        return stage_ == Stage::Running && term_.is_leading(at);
    }
    [[nodiscard]] Instant leads_until() const {
        return stage_ == Stage::Running ? term_.leads_until() : Instant::min();
    }
    [[nodiscard]] Journal& journal() { return *journal_; }

private:
    using Self = std::shared_ptr<Impl>;
    enum class Stage { New, Running, Stopped };

    static asio::awaitable<void> ask(Self self, AskEtcd question);
    static asio::awaitable<void> read(Self self, std::shared_ptr<EtcdClient> client);
    static asio::awaitable<void> watch(Self self, WatchKey asked);
    static asio::awaitable<void> give_up(Self self, std::int64_t lease, std::function<void()> done);

    [[nodiscard]] EtcdRequest request_of(const AskEtcd& question) const;
    void step(const TermInput& input);
    void carry_out(const TermEffects& effects);
    void arm();
    void begin_leading(std::uint64_t term);
    void end_leading(const std::string& why);
    void stop_reading();

    asio::io_context& io_;
    const LeadershipOptions options_;
    const EtcdKeys keys_;
    LeaderTerm term_;
    const std::shared_ptr<EtcdClient> client_;
    const std::shared_ptr<EtcdClient> watch_client_;
    std::shared_ptr<EtcdClient> records_client_;  ///< of this term
    EtcdRecords records_;                         ///< as they were read for it
    const std::shared_ptr<EtcdJournal> journal_;
    asio::steady_timer timer_;
    std::optional<Instant> armed_;
    LeadershipEvents events_;
    Stage stage_ = Stage::New;
};

// ----------------------------------------------------------------------------- called by the owner

void Leadership::Impl::start(LeadershipEvents events) {
    DDP_CHECK(stage_ == Stage::New);
    events_ = std::move(events);
    stage_ = Stage::Running;
    TermEffects effects;
    term_.start(now(), effects);
    carry_out(effects);
}

void Leadership::Impl::stop(std::function<void()> done) {
    DDP_CHECK(stage_ != Stage::Stopped);
    close();
    if (const std::optional<std::int64_t> lease = term_.lease()) {
        asio::co_spawn(io_, give_up(shared_from_this(), *lease, std::move(done)), asio::detached);
    } else {
        asio::post(io_, std::move(done));
    }
}

void Leadership::Impl::close() {
    stage_ = Stage::Stopped;
    journal_->close();
    client_->close();
    watch_client_->close();
    stop_reading();
    timer_.cancel();
}

asio::awaitable<void> Leadership::Impl::give_up(Self self, std::int64_t lease,
                                                std::function<void()> done) {
    const auto client =
        std::make_shared<EtcdClient>(self->io_, self->options_.etcds, self->options_.limits);
    EtcdRequest request = revoke_request(lease);
    const Milliseconds each = self->options_.limits.etcd_timeout / 2;
    const Instant until = now() + self->options_.limits.etcd_timeout;
    const Result<std::string> revoked = co_await client->call(std::move(request), each, until);
    static_cast<void>(revoked);  // it runs out by itself if that failed
    client->close();
    done();
}

// ------------------------------------------------------------------------- what the term asks for

void Leadership::Impl::step(const TermInput& input) {
    if (stage_ == Stage::Running) {
        TermEffects effects;
        term_.step(now(), input, effects);
        carry_out(effects);
    }
}

void Leadership::Impl::carry_out(const TermEffects& effects) {
    const Overloaded act{
        [this](const AskEtcd& question) {
            asio::co_spawn(io_, ask(shared_from_this(), question), asio::detached);
        },
        [this](const WatchKey& asked) {
            asio::co_spawn(io_, watch(shared_from_this(), asked), asio::detached);
        },
        [this](const ReadRecords&) {
            records_client_ = std::make_shared<EtcdClient>(io_, options_.etcds, options_.limits);
            asio::co_spawn(io_, read(shared_from_this(), records_client_), asio::detached);
        },
        [this](const StopReading&) { stop_reading(); },
        [this](const BeginLeading& begun) { begin_leading(begun.term); },
        [this](const EndLeading& ended) { end_leading(ended.why); },
        [this](const FollowLeader& followed) {
            if (events_.follows) {
                events_.follows(followed.endpoint);
            }
        },
        [this](const SayLine& line) {
            if (events_.say) {
                events_.say(line.text);
            }
        },
    };
    for (const TermEffect& effect : effects) {
        if (stage_ == Stage::Running) {
            std::visit(act, effect);
        }
    }
    arm();
}

void Leadership::Impl::arm() {
    const std::optional<Instant> at = term_.timer();
    if (stage_ != Stage::Running || at == armed_) {
        return;
    }
    armed_ = at;
    if (!at) {
        timer_.cancel();
        return;
    }
    timer_.expires_at(*at);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
        if (!cancelled) {
            self->armed_.reset();
            self->step(TermTimer{});
        }
    });
}

EtcdRequest Leadership::Impl::request_of(const AskEtcd& question) const {
    const Overloaded request{
        [this](const LookAtKey&) { return range_request(keys_.leader); },
        [](const GrantLease& asked) { return grant_request(asked.ttl.count()); },
        [this](const TakeKey& asked) {
            return campaign_request(keys_.leader, options_.advertised, asked.lease);
        },
        [](const ProlongLease& asked) { return keep_alive_request(asked.lease); },
    };
    return std::visit(request, question.what);
}

asio::awaitable<void> Leadership::Impl::ask(Self self, AskEtcd question) {
    EtcdRequest request = self->request_of(question);
    const Result<std::string> body =
        co_await self->client_->call(std::move(request), question.each, question.until);
    if (!body) {
        self->step(failed(body.error()));
    } else {
        self->step(
            std::visit([&](const auto& asked) { return answer_to(asked, *body); }, question.what));
    }
}

asio::awaitable<void> Leadership::Impl::read(Self self, std::shared_ptr<EtcdClient> client) {
    std::function<Instant()> until = [impl = self.get()] { return impl->leads_until(); };
    Result<EtcdRecords> records =
        co_await read_etcd_records(client, self->keys_.runs, self->options_.limits, until);
    if (self->records_client_ != client) {
        co_return;  // nobody waits for them any more
    }
    self->stop_reading();
    if (records) {
        self->records_ = *std::move(records);
        self->step(RecordsRead{});
    } else {
        self->step(RecordsFailed{records.error().what});
    }
}

void Leadership::Impl::stop_reading() {
    if (const auto client = std::exchange(records_client_, nullptr)) {
        client->close();
    }
}

asio::awaitable<void> Leadership::Impl::watch(Self self, WatchKey asked) {
    EtcdRequest request = watch_request(self->keys_.leader, asked.revision);
    const Result<void> opened = co_await self->watch_client_->open_stream(std::move(request));
    if (!opened) {
        self->step(WatchEnded{opened.error().what});
        co_return;
    }
    while (self->stage_ == Stage::Running) {
        const Result<std::string> line = co_await self->watch_client_->next_line(asked.silence_max);
        if (!line && line.error().code == ErrorCode::TimedOut) {
            self->step(WatchSilent{});
            co_return;
        }
        const Result<EtcdWatched> watched =
            line ? read_watched(*line) : Result<EtcdWatched>(line.error());
        if (!watched || watched->is_cancelled) {
            self->step(WatchEnded{});
            co_return;
        }
        if (watched->is_deleted) {
            self->step(KeyDeleted{});
            co_return;
        }
        self->step(WatchHeard{});
    }
}

void Leadership::Impl::begin_leading(std::uint64_t term) {
    EtcdTerm journal_term;
    journal_term.revision = term;
    journal_term.mod_revisions = std::move(records_.mod_revisions);
    journal_term.leads_until = [this] { return leads_until(); };
    journal_term.is_deposed = [this] { step(TermDeposed{}); };
    journal_->begin_term(std::move(journal_term));
    if (events_.leads) {
        events_.leads(term, std::move(records_.records));
    }
}

void Leadership::Impl::end_leading(const std::string& why) {
    journal_->end_term();
    if (events_.lost) {
        events_.lost(why);
    }
}

// ---------------------------------------------------------------------------------- the Leadership

Leadership::Leadership(asio::io_context& io, LeadershipOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

Leadership::~Leadership() {
    impl_->close();
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
