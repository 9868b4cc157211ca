#include "agent/memory/peers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <tuple>
#include <variant>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/transport/listener.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/handshake.hpp"

namespace ddprun::agent {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using worker::MemoryFile;

namespace {

Instant now() {
    return std::chrono::steady_clock::now();
}

Error lost(const std::string& why) {
    return {ErrorCode::ConnectionLost, why};
}

/// The texts of the handshake speak of a rendezvous.
Error handshake_error(const Error& failure) {
    if (failure.code == ErrorCode::BadSecret) {
        return {failure.code, "its secret is not that of this node"};
    }
    return {failure.code,
            "it is no ddprun-memory of this job, of this version, and like this one "
            "with or without --insecure"};
}

Error tls_error(const Error& failure) {
    return {failure.code,
            fmt::format("no TLS with it: {}; all nodes need the same --tls-ca, and certificates of "
                        "that authority",
                        failure.what)};
}

}  // namespace

Result<PeersTls> PeersTls::of(const rdzv::TlsFiles& files) {
    PeersTls tls;
    if (!files.is_on()) {
        return tls;
    }
    auto accepting = rdzv::TlsContext::for_rendezvous(files);
    if (!accepting) {
        return accepting.error();
    }
    auto dialling = rdzv::TlsContext::for_partner(files);
    if (!dialling) {
        return dialling.error();
    }
    tls.accepting = *std::move(accepting);
    tls.dialling = *std::move(dialling);
    return tls;
}

Peers::Peers(asio::io_context& io, const MemoryLimits& limits, const JobId& job,
             std::optional<rdzv::JobSecret> secret, PeersTls tls, KeptCheckpoints& kept)
    : io_(io),
      limits_(limits),
      job_(job.value() + "\nmemory"),
      secret_(std::move(secret)),
      tls_(std::move(tls)),
      kept_(kept),
      pause_(io),
      bucket_(limits.memory_copy_bytes_per_second, limits.memory_copy_burst_bytes),
      pace_(io, [this] {
          for (const auto& [id, link] : links_) {
              ask(*link);
          }
      }) {}

Result<std::string> Peers::start(UniqueFd listener) {
    Result<rdzv::Listener> adopted = rdzv::adopt_listener(std::move(listener));
    if (!adopted) {
        return adopted.error();
    }
    const bool is_6 = adopted->host.find(':') != std::string::npos;
    acceptor_.emplace(io_, is_6 ? tcp::v6() : tcp::v4(), adopted->fd.release());
    asio::co_spawn(io_, accept_peers(), asio::detached);
    return rdzv::to_string({adopted->host, adopted->port});
}

void Peers::replicate(const std::string& partner, const StepKey& key, Rank rank,
                      std::vector<MemoryFile> files, std::function<void(std::string)> done) {
    const auto tell = [partner, done = std::move(done)](const Result<void>& result) {
        done(result
                 ? std::string()
                 : fmt::format("the partner at {} has no copy: {}", partner, result.error().what));
    };
    const Result<Link*> found = link_to(partner);
    if (!found) {
        tell(found.error());
        return;
    }
    Link& link = **found;
    if (link.offers.size() >= limits_.memory_offers_max) {
        tell(Error{ErrorCode::LimitExceeded, "too much waits for it"});
        return;
    }
    const PeerOffer offer{
        .number = ++last_number_, .rank = rank, .key = key, .files = std::move(files)};
    if (link.offers.empty() && link.asked.empty()) {
        link.last_heard = now();
    }
    link.offers[offer.number] = tell;
    send(link, encode(offer));
    set_deadline(link);
}

void Peers::fetch(const std::string& endpoint, const StepKey& key, MemoryFile file, Done done) {
    auto& waiting = fetches_[{key, file.name}];
    waiting.push_back(std::move(done));
    if (waiting.size() > 1) {
        return;
    }
    const auto finish = [this, key, name = file.name, endpoint](const Result<void>& result) {
        const auto entry = fetches_.extract({key, name});
        for (const Done& each : entry.mapped()) {
            each(result ? result
                        : Error{result.error().code,
                                fmt::format("{} cannot be copied from {}: {}", name, endpoint,
                                            result.error().what)});
        }
    };
    const Result<Link*> link = link_to(endpoint);
    if (!link) {
        finish(link.error());
        return;
    }
    const ShelfOwner owner{.kind = ShelfOwner::Kind::Fetched,
                           .rank = Rank(static_cast<int>(++last_number_))};
    if (const Result<void> begun = begin_pull(**link, owner, key, {std::move(file)}, finish);
        !begun) {
        finish(begun.error());
    }
}

// ----------------------------------------------------------------------------------- connections

asio::awaitable<void> Peers::accept_peers() {
    for (;;) {
        auto [failure, socket] =
            co_await acceptor_->async_accept(asio::as_tuple(asio::use_awaitable));
        if (failure == asio::error::operation_aborted) {
            co_return;
        }
        if (failure) {
            // Without a descriptor the connection stays in the backlog.
            pause_.expires_after(Limits().reconnect_backoff_max);
            co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
            continue;
        }
        error_code ignored;
        const std::string name = socket.remote_endpoint(ignored).address().to_string();
        if (make_place()) {
            asio::co_spawn(io_, run_accepted(add(std::move(socket), name)), asio::detached);
        }
    }
}

/// The longest in the handshake makes room: strangers who say nothing shut out only each other.
bool Peers::make_place() {
    if (links_.size() < limits_.memory_peers_max) {
        return true;
    }
    const auto oldest = std::ranges::find_if(links_, [](const auto& entry) {
        const Link& link = *entry.second;
        return !link.is_open && !link.is_dialled && !link.connection->has_ended();
    });
    if (oldest != links_.end()) {
        oldest->second->connection->fail("a newer connection needs its place");
    }
    // Its coroutine removes it; until then there is one more.
    return oldest != links_.end();
}

Peers::Link& Peers::add(tcp::socket socket, std::string name) {
    auto link = std::make_unique<Link>();
    Link& made = *link;
    made.id = ++last_number_;
    made.name = std::move(name);
    made.connection = std::make_unique<rdzv::Connection>(std::move(socket), Limits());
    made.deadline = std::make_unique<DeadlineTimer>(io_, [this, &made] { is_overdue(made); });
    made.last_heard = now();
    links_[made.id] = std::move(link);
    set_deadline(made);
    return made;
}

Result<Peers::Link*> Peers::link_to(const std::string& endpoint) {
    if (const auto known = dialled_.find(endpoint); known != dialled_.end()) {
        return links_.at(known->second).get();
    }
    const Result<rdzv::Endpoint> parsed = rdzv::parse_endpoint(endpoint);
    if (!parsed) {
        return parsed.error();
    }
    error_code failure;
    const tcp::endpoint to(asio::ip::make_address(parsed->host, failure), parsed->port);
    tcp::socket socket(io_);
    if (!failure) {
        socket.open(to.protocol(), failure);
    }
    if (failure) {
        return Error{ErrorCode::Unreachable, failure.message()};
    }
    if (!make_place()) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("this node has {} connections to others already",
                                 limits_.memory_peers_max)};
    }
    Link& link = add(std::move(socket), endpoint);
    link.is_dialled = true;
    dialled_[endpoint] = link.id;
    asio::co_spawn(io_, run_dialled(link, to), asio::detached);
    return &link;
}

asio::awaitable<void> Peers::run_dialled(Link& link, tcp::endpoint to) {
    const Result<rdzv::SessionKeys> keys = co_await reach(link, to);
    if (!keys) {
        end(link, keys.error().what);
        co_return;
    }
    co_await carry(link, *keys);
}

asio::awaitable<void> Peers::run_accepted(Link& link) {
    const Result<rdzv::SessionKeys> keys = co_await welcome(link);
    if (!keys) {
        end(link, keys.error().what);
        co_return;
    }
    co_await carry(link, *keys);
}

asio::awaitable<Result<rdzv::SessionKeys>> Peers::reach(Link& link, tcp::endpoint to) {
    rdzv::Connection& connection = *link.connection;
    error_code failure;
    std::tie(failure) =
        co_await connection.socket().async_connect(to, asio::as_tuple(asio::use_awaitable));
    // TCP connects a socket to itself if its port is the one that it wants.
    error_code ignored;
    if (!failure && connection.socket().local_endpoint(ignored) == to) {
        failure = asio::error::connection_refused;
    }
    if (failure) {
        co_return lost(connection.has_ended() ? connection.why_ended() : failure.message());
    }
    connection.tune();
    if (tls_.dialling) {
        const Result<void> hidden =
            co_await connection.shake_tls(tls_.dialling, std::string_view());
        if (!hidden) {
            co_return connection.has_ended() ? lost(connection.why_ended())
                                             : tls_error(hidden.error());
        }
    }
    const rdzv::AgentHandshake handshake(secret_, job_on(connection), rdzv::random_nonce(),
                                         rdzv::PeerRole::Control);
    Result<void> moved = co_await connection.write_whole(handshake.hello());
    std::array<char, rdzv::kAnswerBytes> answer{};
    if (moved) {
        moved = co_await connection.read_exactly(answer.data(), answer.size());
    }
    if (!moved) {
        // The other end says only now that it does not take our certificate.
        co_return connection.has_ended() ? lost(connection.why_ended()) : moved.error();
    }
    const std::string_view bytes(answer.data(), answer.size());
    Result<rdzv::AgentHandshake::Finish> finish = handshake.finish(bytes, link.name);
    if (!finish) {
        co_return handshake_error(finish.error());
    }
    moved = co_await connection.write_whole(finish->proof);
    if (!moved) {
        co_return moved.error();
    }
    co_return finish->keys;
}

asio::awaitable<Result<rdzv::SessionKeys>> Peers::welcome(Link& link) {
    rdzv::Connection& connection = *link.connection;
    connection.tune();
    Result<void> moved;
    if (tls_.accepting) {
        moved = co_await connection.shake_tls(tls_.accepting, std::string_view());
    }
    if (!moved) {
        co_return moved.error();
    }
    std::array<char, rdzv::kHelloBytes> hello{};
    moved = co_await connection.read_exactly(hello.data(), hello.size());
    if (!moved) {
        co_return moved.error();
    }
    rdzv::RendezvousHandshake handshake(secret_, rdzv::random_nonce());
    const rdzv::RendezvousHandshake::Answer answer =
        handshake.answer(std::string_view(hello.data(), hello.size()));
    if (answer.bytes.empty() || (!answer.refused && !handshake.is_for(job_on(connection)))) {
        co_return Error{ErrorCode::Refused, "it is no ddprun-memory of this job"};
    }
    moved = co_await connection.write_whole(answer.bytes);
    if (!moved) {
        co_return moved.error();
    }
    if (answer.refused) {
        co_return *answer.refused;
    }
    std::array<char, rdzv::kProofBytes> proof{};
    moved = co_await connection.read_exactly(proof.data(), proof.size());
    if (!moved) {
        co_return moved.error();
    }
    co_return handshake.finish(std::string_view(proof.data(), proof.size()));
}

/// With TLS the proof of the secret covers the connection: no relay stands in between.
JobId Peers::job_on(const rdzv::Connection& connection) const {
    return connection.has_tls() ? JobId(job_.value() + "\n" + connection.tls_binding()) : job_;
}

asio::awaitable<void> Peers::carry(Link& link, rdzv::SessionKeys keys) {
    // The proof is bound to the TLS connection, whose records are authentic: a MAC of each frame
    // would take more time than all of TLS.
    link.connection->secure(link.connection->has_tls() ? rdzv::SessionKeys() : keys);
    link.is_open = true;
    link.last_heard = now();
    for (const std::string& body : std::exchange(link.unsent, {})) {
        link.connection->send(body);
    }
    ask(link);
    set_deadline(link);
    std::function<void(std::string_view)> on_body = [this, &link](std::string_view body) {
        take(link, body);
    };
    co_await link.connection->carry(std::move(on_body));
    end(link, link.connection->why_ended());
}

void Peers::set_deadline(Link& link) {
    if (!link.is_open) {
        link.deadline->set(link.last_heard + limits_.memory_connect_timeout);
    } else if (!link.offers.empty() || !link.asked.empty()) {
        link.deadline->set(link.last_heard + limits_.memory_peer_timeout);
    } else if (link.is_dialled && link.pulls.empty()) {
        link.deadline->set(link.last_heard + limits_.memory_idle_timeout);
    } else {
        link.deadline->set(std::nullopt);
    }
}

void Peers::is_overdue(Link& link) {
    const bool is_idle = link.is_open && link.offers.empty() && link.asked.empty();
    if (is_idle) {
        // From here on another connection is made for this endpoint.
        dialled_.erase(link.name);
        link.connection->close();
    } else {
        link.connection->fail(fmt::format(
            "no answer within {} ms",
            (link.is_open ? limits_.memory_peer_timeout : limits_.memory_connect_timeout).count()));
    }
}

void Peers::send(Link& link, std::string body) {
    if (link.is_open) {
        link.connection->send(body);
    } else {
        link.unsent.push_back(std::move(body));
    }
}

/// The last step of its coroutine: no handler of the connection is left.
void Peers::end(Link& link, const std::string& why) {
    const auto entry = links_.extract(link.id);
    if (const auto known = dialled_.find(link.name);
        known != dialled_.end() && known->second == link.id) {
        dialled_.erase(known);
    }
    for (const auto& [number, done] : std::exchange(link.offers, {})) {
        done(lost(why));
    }
    while (!link.pulls.empty()) {
        finish_pull(link, lost(why));
    }
}

// -------------------------------------------------------------------------------------- messages

void Peers::take(Link& link, std::string_view body) {
    link.last_heard = now();
    Result<PeerMessage> message = decode_peer_message(body);
    if (!message) {
        link.connection->fail(message.error().what);
        return;
    }
    std::visit([&](auto& one) { take(link, one); }, *message);
    set_deadline(link);
}

void Peers::take(Link& link, PeerOffer& offer) {
    const std::uint64_t number = offer.number;
    const auto answer = [this, id = link.id, number](const Result<void>& result) {
        const auto found = links_.find(id);
        if (found != links_.end()) {
            const PeerDone done{.number = number,
                                .fault = result ? std::string() : result.error().what};
            send(*found->second, encode(done));
        }
    };
    if (link.pulls.size() >= limits_.memory_offers_max) {
        answer(Error{ErrorCode::LimitExceeded, "too many copies wait there"});
        return;
    }
    std::erase_if(offer.files, [&](const MemoryFile& file) {
        const auto found = kept_.shelf.find(offer.key, file.name);
        return found && found->file == file;
    });
    if (offer.files.empty()) {
        answer(Result<void>());
        return;
    }
    const ShelfOwner owner{.kind = ShelfOwner::Kind::Copied, .rank = offer.rank};
    if (const Result<void> begun =
            begin_pull(link, owner, offer.key, std::move(offer.files), answer);
        !begun) {
        answer(begun.error());
    }
}

void Peers::take(Link& link, const PeerDone& done) {
    const auto found = link.offers.find(done.number);
    if (found == link.offers.end()) {
        link.connection->fail("it answers what nobody has asked");
        return;
    }
    const Done tell = std::move(found->second);
    link.offers.erase(found);
    tell(done.fault.empty() ? Result<void>() : Error{ErrorCode::Refused, done.fault});
}

void Peers::take(Link& link, const PeerGet& get) {
    const auto found = kept_.shelf.find(get.key, get.name);
    if (!found) {
        send(link,
             encode(PeerMissing{fmt::format("{} of step {} of generation {} is not there", get.name,
                                            get.key.step, get.key.generation.value())}));
        return;
    }
    const std::uint64_t size = found->file.size;
    if (get.bytes > limits_.memory_piece_bytes_max || get.offset > size ||
        get.bytes > size - get.offset) {
        send(link, encode(PeerMissing{fmt::format("{} has no {} bytes at {} that may be asked for "
                                                  "at once",
                                                  get.name, get.bytes, get.offset)}));
        return;
    }
    std::string body(kPieceBegins);
    const Result<void> read =
        kept_.buffers.read(found->buffer, get.offset, static_cast<std::size_t>(get.bytes), body);
    send(link, read ? std::move(body) : encode(PeerMissing{read.error().what}));
}

void Peers::take(Link& link, const PeerPiece& piece) {
    if (link.asked.empty() || link.asked.front().bytes != piece.bytes.size()) {
        link.connection->fail("it sends bytes that nobody has asked for");
        return;
    }
    const Asked asked = link.asked.front();
    link.asked.pop_front();
    // A pull that has failed leaves pieces on their way.
    const bool is_current = !link.pulls.empty() && link.pulls.front().number == asked.pull;
    go_on(link, is_current ? store(link.pulls.front(), piece.bytes) : Result<void>());
}

void Peers::take(Link& link, const PeerMissing& missing) {
    if (link.asked.empty()) {
        link.connection->fail("it answers what nobody has asked");
        return;
    }
    const Asked asked = link.asked.front();
    link.asked.pop_front();
    const bool is_current = !link.pulls.empty() && link.pulls.front().number == asked.pull;
    go_on(link, is_current ? Error{ErrorCode::NotFound, missing.why} : Result<void>());
}

// ------------------------------------------------------------------------------- copying to here

/// `done` is called once if this succeeds, perhaps at once.
Result<void> Peers::begin_pull(Link& link, const ShelfOwner& owner, const StepKey& key,
                               std::vector<MemoryFile> files, Done done) {
    const Result<std::vector<CheckpointShelf::Room>> rooms = kept_.begin(owner, key, files);
    if (!rooms) {
        return rooms.error();
    }
    Pull& pull = link.pulls.emplace_back();
    pull.number = ++last_number_;
    pull.owner = owner;
    pull.key = key;
    pull.files = std::move(files);
    for (const CheckpointShelf::Room& room : *rooms) {
        pull.buffers.push_back(room.buffer);
    }
    pull.hasher = std::make_unique<worker::Xxh3Hasher>();
    pull.done = std::move(done);
    if (link.pulls.size() == 1) {
        go_on(link, Result<void>());
    }
    return {};
}

/// Asks for as many pieces as may be on their way.
void Peers::ask(Link& link) {
    if (!link.is_open || link.pulls.empty()) {
        return;
    }
    Pull& pull = link.pulls.front();
    Piece& next = pull.next_asked;
    while (link.asked.size() < limits_.memory_pieces_ahead && next.file < pull.files.size()) {
        const MemoryFile& file = pull.files.at(next.file);
        if (next.offset == file.size) {
            next = {.file = next.file + 1, .offset = 0};
            continue;
        }
        const std::uint64_t bytes =
            std::min<std::uint64_t>(limits_.memory_piece_bytes_max, file.size - next.offset);
        if (!bucket_.take(now(), bytes)) {
            pace_.set(bucket_.when(bytes));
            break;
        }
        if (link.offers.empty() && link.asked.empty()) {
            link.last_heard = now();
        }
        link.asked.push_back({.pull = pull.number, .bytes = bytes});
        send(link, encode(PeerGet{
                       .key = pull.key, .name = file.name, .offset = next.offset, .bytes = bytes}));
        next.offset += bytes;
    }
    set_deadline(link);
}

Result<void> Peers::store(Pull& pull, std::string_view bytes) {
    const MemoryFile& file = pull.files.at(pull.next_received.file);
    const BufferId buffer = pull.buffers.at(pull.next_received.file);
    // Once it is forgotten, its buffer may be another file's.
    if (!kept_.shelf.is_being_written(pull.owner, pull.key, file.name, buffer)) {
        return Error{ErrorCode::Refused, fmt::format("{} is out of date there", file.name)};
    }
    const auto raw = std::as_bytes(std::span(bytes.data(), bytes.size()));
    if (const Result<void> written = kept_.buffers.write(buffer, pull.next_received.offset, raw);
        !written) {
        return written;
    }
    pull.hasher->add(raw);
    pull.next_received.offset += bytes.size();
    return {};
}

/// Compares the checksums of the files that are complete.
Result<void> Peers::finish_files(Pull& pull) {
    Piece& next = pull.next_received;
    while (next.file < pull.files.size() && next.offset == pull.files.at(next.file).size) {
        const MemoryFile& file = pull.files.at(next.file);
        const std::string checksum = pull.hasher->hex();
        if (checksum != file.xxh3_128) {
            return Error{ErrorCode::BadMessage,
                         fmt::format("{} has the checksum {} after the copy, not {}", file.name,
                                     checksum, file.xxh3_128)};
        }
        next = {.file = next.file + 1, .offset = 0};
        pull.hasher = std::make_unique<worker::Xxh3Hasher>();
    }
    return {};
}

/// `stored`: of the first pull's next piece.
void Peers::go_on(Link& link, const Result<void>& stored) {
    Result<void> result = stored;
    while (!link.pulls.empty()) {
        Pull& pull = link.pulls.front();
        if (result) {
            result = finish_files(pull);
        }
        if (result && pull.next_received.file < pull.files.size()) {
            break;
        }
        finish_pull(link, result ? kept_.shelf.finish(pull.owner, pull.key, pull.files) : result);
        result = {};
    }
    ask(link);
}

void Peers::finish_pull(Link& link, Result<void> result) {
    const Pull pull = std::move(link.pulls.front());
    link.pulls.pop_front();
    if (!result) {
        kept_.shelf.abandon(pull.owner);
        kept_.drop_forgotten();
    }
    pull.done(std::move(result));
}

}  // namespace ddprun::agent
