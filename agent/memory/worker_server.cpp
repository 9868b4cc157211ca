#include "agent/memory/worker_server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"

namespace ddprun::agent {

namespace {

using boost::asio::posix::stream_descriptor;
using worker::MemoryReply;
using worker::MemoryRequest;
using worker::MemoryVerb;

bool is_of_this_user(int socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.uid == ::geteuid();
}

/// The loop may report a socket as readable that is not.
bool is_readable(int socket) {
    pollfd state{socket, POLLIN, 0};
    return ::poll(&state, 1, 0) == 1;
}

StepKey own_key(const MemoryRequest& request, Generation own) {
    StepKey key = request.key;
    key.generation = own;
    return key;
}

Error bad_request(const std::string& what) {
    return {ErrorCode::BadMessage, what};
}

}  // namespace

WorkerServer::WorkerServer(boost::asio::io_context& io, const MemoryLimits& limits,
                           UniqueFd listener, KeptCheckpoints& kept, OtherNodes others)
    : io_(io),
      limits_(limits),
      listener_(io, listener.release()),
      pause_(io),
      kept_(kept),
      others_(std::move(others)) {}

void WorkerServer::start() {
    listener_.non_blocking(true);
    await_workers();
}

void WorkerServer::await_workers() {
    listener_.async_wait(stream_descriptor::wait_read,
                         [this](const boost::system::error_code& failure) {
                             if (!failure) {
                                 accept_workers();
                             }
                         });
}

void WorkerServer::accept_workers() {
    for (;;) {
        UniqueFd socket(
            ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.is_open()) {
            admit(std::move(socket));
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            // The connection stays in the backlog, so that the socket stays readable.
            pause_.expires_after(Limits().reconnect_backoff_max);
            pause_.async_wait([this](const boost::system::error_code& cancelled) {
                if (!cancelled) {
                    await_workers();
                }
            });
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            await_workers();
            return;
        }
    }
}

void WorkerServer::admit(UniqueFd socket) {
    if (sessions_.size() >= limits_.memory_workers_max || !is_of_this_user(socket.get())) {
        return;
    }
    const SessionId id = ++last_session_;
    Session& session = sessions_.try_emplace(id, io_).first->second;
    session.socket.assign(socket.release());
    listen_to(id);
}

void WorkerServer::listen_to(SessionId id) {
    sessions_.at(id).socket.async_wait(stream_descriptor::wait_read,
                                       [this, id](const boost::system::error_code& failure) {
                                           if (!failure) {
                                               take_request(id);
                                           }
                                       });
}

void WorkerServer::take_request(SessionId id) {
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) {
        return;
    }
    const int socket = session->second.socket.native_handle();
    if (!is_readable(socket)) {
        listen_to(id);
        return;
    }
    const Result<worker::MemoryPacket> packet = worker::receive_packet(socket);
    if (!packet) {
        end(id);
        return;
    }
    const Result<MemoryRequest> request = worker::decode_memory_request(packet->text);
    if (request) {
        serve(id, *request);
    } else {
        reply(id, request.error());
    }
}

void WorkerServer::serve(SessionId id, const MemoryRequest& request) {
    Session& session = sessions_.at(id);
    if (session.is_greeted == (request.verb == MemoryVerb::Hello)) {
        reply(id, bad_request("hello is the first request of a worker, and comes once"));
        return;
    }
    switch (request.verb) {
        case MemoryVerb::Hello:
            greet(id, request);
            return;
        case MemoryVerb::Partner:
            session.partner = request.endpoint;
            reply(id, MemoryReply());
            return;
        case MemoryVerb::Begin:
            begin(id, request);
            return;
        case MemoryVerb::Written:
            written(id, request);
            return;
        case MemoryVerb::Seal:
            seal(id, request);
            return;
        case MemoryVerb::List: {
            MemoryReply list;
            list.steps = kept_.shelf.list();
            reply(id, list);
            return;
        }
        case MemoryVerb::Open:
            open(id, request);
            return;
        case MemoryVerb::Fetch:
            fetch(id, request);
            return;
    }
}

void WorkerServer::greet(SessionId id, const MemoryRequest& request) {
    if (series_ && *series_ != request.series) {
        reply(id, Error{ErrorCode::Refused,
                        fmt::format("the checkpoints of {} are in memory; those of {} go to the "
                                    "disk",
                                    *series_, request.series)});
        return;
    }
    if (const Result<void> greeted = kept_.shelf.greet(request.key.generation); !greeted) {
        reply(id, greeted);
        return;
    }
    series_ = request.series;
    Session& session = sessions_.at(id);
    session.is_greeted = true;
    session.owner.rank = Rank(request.rank);
    session.generation = request.key.generation;
    MemoryReply hello;
    hello.endpoint = others_.endpoint;
    reply(id, hello);
}

void WorkerServer::begin(SessionId id, const MemoryRequest& request) {
    const Session& session = sessions_.at(id);
    const std::size_t count = request.files.size();
    if (count == 0 || count > worker::kMemoryDescriptorsMax) {
        reply(id, bad_request(fmt::format("begin names {} files; 1 to {} are allowed", count,
                                          worker::kMemoryDescriptorsMax)));
        return;
    }
    const StepKey key = own_key(request, session.generation);
    const auto rooms = kept_.begin(session.owner, key, request.files);
    if (!rooms) {
        reply(id, rooms.error());
        return;
    }
    std::vector<UniqueFd> files;
    for (const CheckpointShelf::Room& room : *rooms) {
        Result<UniqueFd> file = kept_.buffers.open_to_write(room.buffer);
        if (!file) {
            kept_.shelf.abandon(session.owner);
            reply(id, file.error());
            return;
        }
        files.push_back(*std::move(file));
    }
    reply(id, MemoryReply(), files);
}

void WorkerServer::written(SessionId id, const MemoryRequest& request) {
    const Session& session = sessions_.at(id);
    const StepKey key = own_key(request, session.generation);
    const Result<void> finished = kept_.shelf.finish(session.owner, key, request.files);
    std::vector<worker::MemoryFile> copied = request.files;
    // Each node writes the manifest itself.
    std::erase_if(
        copied, [](const worker::MemoryFile& file) { return file.name == worker::kManifestName; });
    if (!finished || session.partner.empty() || copied.empty()) {
        reply(id, finished);
        return;
    }
    if (!others_.replicate) {
        MemoryReply without;
        without.note = "ddprun was started without --memory-replicas 1 here";
        reply(id, without);
        return;
    }
    others_.replicate(session.partner, key, session.owner.rank, std::move(copied),
                      [this, id](std::string note) {
                          MemoryReply done;
                          done.note = std::move(note);
                          reply(id, done);
                      });
}

void WorkerServer::seal(SessionId id, const MemoryRequest& request) {
    const Session& session = sessions_.at(id);
    const bool is_own = request.key.generation == Generation();
    const Result<void> sealed = kept_.shelf.seal(
        session.generation, is_own ? own_key(request, session.generation) : request.key);
    kept_.drop_forgotten();
    reply(id, sealed);
}

void WorkerServer::open(SessionId id, const MemoryRequest& request) {
    if (request.files.size() != 1) {
        reply(id, bad_request("open names one file"));
        return;
    }
    const std::string& name = request.files.front().name;
    const auto found = kept_.shelf.open(request.key, name);
    if (!found) {
        reply(id, Error{ErrorCode::NotFound,
                        fmt::format("{} of step {} of generation {} is not in this node's memory",
                                    name, request.key.step, request.key.generation.value())});
        return;
    }
    Result<UniqueFd> file = kept_.buffers.open_to_read(found->buffer);
    if (!file) {
        reply(id, file.error());
        return;
    }
    std::vector<UniqueFd> files;
    files.push_back(*std::move(file));
    reply(id, MemoryReply(), files);
}

void WorkerServer::fetch(SessionId id, const MemoryRequest& request) {
    if (request.files.size() != 1 || request.files.front().xxh3_128.empty()) {
        reply(id, bad_request("fetch names one file, with its checksum"));
        return;
    }
    const worker::MemoryFile& file = request.files.front();
    const auto found = kept_.shelf.find(request.key, file.name);
    if (found && found->file == file) {
        reply(id, Result<void>());
        return;
    }
    if (!others_.fetch) {
        reply(id, Error{ErrorCode::Refused,
                        "ddprun was started without --memory-replicas 1 here; it copies no file "
                        "from another node"});
        return;
    }
    others_.fetch(request.endpoint, request.key, file,
                  [this, id](const Result<void>& fetched) { reply(id, fetched); });
}

void WorkerServer::reply(SessionId id, const Result<void>& result) {
    MemoryReply message;
    if (!result) {
        message.error = result.error();
    }
    reply(id, message);
}

/// The next request is read only now: so nothing waits in this process.
void WorkerServer::reply(SessionId id, const MemoryReply& message,
                         const std::vector<UniqueFd>& descriptors) {
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) {
        return;
    }
    std::vector<int> numbers;
    for (const UniqueFd& descriptor : descriptors) {
        numbers.push_back(descriptor.get());
    }
    std::string text = encode(message);
    if (text.size() > worker::kMemoryPacketBytesMax) {
        MemoryReply refused;
        refused.error =
            Error{ErrorCode::LimitExceeded,
                  fmt::format("the list of files in memory has {} bytes; {} are allowed",
                              text.size(), worker::kMemoryPacketBytesMax)};
        text = encode(refused);
    }
    // A worker that reads its replies has room for this one.
    if (!worker::send_packet(session->second.socket.native_handle(), text, numbers)) {
        end(id);
        return;
    }
    listen_to(id);
}

void WorkerServer::end(SessionId id) {
    const auto session = sessions_.find(id);
    if (session->second.is_greeted) {
        kept_.shelf.abandon(session->second.owner);
        kept_.drop_forgotten();
    }
    sessions_.erase(session);
}

}  // namespace ddprun::agent
