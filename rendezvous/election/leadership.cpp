#include "rendezvous/election/leadership.hpp"

#include <chrono>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/check.hpp"
#include "base/overloaded.hpp"

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

// Read etcd's answer to each question.

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

Leadership::Leadership(asio::io_context& io, LeadershipOptions options)
    : io_(io),
      options_(std::move(options)),
      keys_(etcd_keys(options_.cluster)),
      term_(options_.advertised, options_.limits),
      client_(io, options_.etcds, options_.limits),
      watch_client_(io, options_.etcds, options_.limits),
      parting_client_(io, options_.etcds, options_.limits),
      journal_(io, options_.etcds, keys_, options_.limits),
      timer_(io, [this] { step(TermTimer{}); }) {}

// ----------------------------------------------------------------------------- called by the owner

void Leadership::start(LeadershipEvents events) {
    DDP_CHECK(stage_ == Stage::New);
    events_ = std::move(events);
    stage_ = Stage::Running;
    TermEffects effects;
    term_.start(now(), effects);
    carry_out(effects);
}

void Leadership::stop(std::function<void()> done) {
    DDP_CHECK(stage_ != Stage::Stopped);
    stage_ = Stage::Stopped;
    journal_.close();
    client_.cancel();
    watch_client_.cancel();
    stop_reading();
    timer_.set(std::nullopt);
    if (const std::optional<std::int64_t> lease = term_.lease()) {
        asio::co_spawn(io_, give_up(*lease, std::move(done)), asio::detached);
    } else {
        asio::post(io_, std::move(done));
    }
}

bool Leadership::is_leading(Instant at) const {
    return stage_ == Stage::Running && term_.is_leading(at);
}

Instant Leadership::leads_until() const {
    return stage_ == Stage::Running ? term_.leads_until() : Instant::min();
}

asio::awaitable<void> Leadership::give_up(std::int64_t lease, std::function<void()> done) {
    EtcdRequest request = revoke_request(lease);
    const Milliseconds each = options_.limits.etcd_timeout / 2;
    const Instant until = now() + options_.limits.etcd_timeout;
    const Result<std::string> revoked =
        co_await parting_client_.call(std::move(request), each, until);
    static_cast<void>(revoked);  // it runs out by itself if that failed
    done();
}

// ------------------------------------------------------------------------- what the term asks for

void Leadership::step(const TermInput& input) {
    if (stage_ == Stage::Running) {
        TermEffects effects;
        term_.step(now(), input, effects);
        carry_out(effects);
    }
}

void Leadership::carry_out(const TermEffects& effects) {
    const Overloaded act{
        [this](const AskEtcd& question) { asio::co_spawn(io_, ask(question), asio::detached); },
        [this](const WatchKey& asked) { asio::co_spawn(io_, watch(asked), asio::detached); },
        [this](const ReadRecords&) {
            reading_ = ++last_reading_;
            const auto [client, is_new] =
                record_clients_.try_emplace(reading_, io_, options_.etcds, options_.limits);
            DDP_CHECK(is_new, reading_);
            asio::co_spawn(io_, read(reading_, client->second), asio::detached);
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
    if (stage_ == Stage::Running) {
        timer_.set(term_.timer());
    }
}

EtcdRequest Leadership::request_of(const AskEtcd& question) const {
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

asio::awaitable<void> Leadership::ask(AskEtcd question) {
    if (stage_ != Stage::Running) {
        co_return;
    }
    EtcdRequest request = request_of(question);
    const Result<std::string> body =
        co_await client_.call(std::move(request), question.each, question.until);
    if (!body) {
        step(failed(body.error()));
    } else {
        step(std::visit([&](const auto& asked) { return answer_to(asked, *body); }, question.what));
    }
}

asio::awaitable<void> Leadership::read(std::uint64_t number, EtcdClient& client) {
    std::function<Instant()> until = [this, number] {
        return reading_ == number ? leads_until() : Instant::min();
    };
    Result<EtcdRecords> records =
        co_await read_etcd_records(client, keys_.runs, options_.limits, until);
    // Its cancelled handlers have their turn before this.
    co_await asio::post(io_, asio::use_awaitable);
    record_clients_.erase(number);
    if (reading_ != number) {
        co_return;  // no reader waits for them any more
    }
    reading_ = 0;
    if (records) {
        records_ = *std::move(records);
        step(RecordsRead{});
    } else {
        step(RecordsFailed{records.error().what});
    }
}

void Leadership::stop_reading() {
    if (const std::uint64_t number = std::exchange(reading_, 0); number != 0) {
        record_clients_.at(number).cancel();
    }
}

asio::awaitable<void> Leadership::watch(WatchKey asked) {
    if (stage_ != Stage::Running) {
        co_return;
    }
    EtcdRequest request = watch_request(keys_.leader, asked.revision);
    const Result<void> opened = co_await watch_client_.open_stream(std::move(request));
    if (!opened) {
        step(WatchEnded{opened.error().what});
        co_return;
    }
    while (stage_ == Stage::Running) {
        const Result<std::string> line = co_await watch_client_.next_line(asked.silence_max);
        if (!line && line.error().code == ErrorCode::TimedOut) {
            step(WatchSilent{});
            co_return;
        }
        const Result<EtcdWatched> watched =
            line ? read_watched(*line) : Result<EtcdWatched>(line.error());
        if (!watched || watched->is_cancelled) {
            step(WatchEnded{});
            co_return;
        }
        if (watched->is_deleted) {
            step(KeyDeleted{});
            co_return;
        }
        step(WatchHeard{});
    }
}

void Leadership::begin_leading(std::uint64_t term) {
    EtcdTerm journal_term;
    journal_term.revision = term;
    journal_term.mod_revisions = std::move(records_.mod_revisions);
    journal_term.leads_until = [this] { return leads_until(); };
    journal_term.is_deposed = [this] { step(TermDeposed{}); };
    journal_.begin_term(std::move(journal_term));
    if (events_.leads) {
        events_.leads(term, std::move(records_.records));
    }
}

void Leadership::end_leading(const std::string& why) {
    journal_.end_term();
    if (events_.lost) {
        events_.lost(why);
    }
}

}  // namespace ddprun::rdzv
