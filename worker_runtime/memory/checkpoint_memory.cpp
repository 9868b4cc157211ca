#include "worker_runtime/memory/checkpoint_memory.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/runtime_limits.hpp"

namespace ddprun::worker {

namespace {

/// Before the name of a socket that lies in no file system.
constexpr char kAbstractMark = '@';

Result<UniqueFd> connect_to(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.size() < 2 || name.front() != kAbstractMark ||
        name.size() > sizeof(address.sun_path)) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{} is no name of a socket; it begins with @", name)};
    }
    std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    if (!socket.is_open() ||
        ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
        return system_error(errno, fmt::format("ddprun-memory at {} does not answer", name));
    }
    const auto timeout = RuntimeLimits().memory_reply_timeout;
    const timeval most{.tv_sec = timeout.count() / 1000, .tv_usec = 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
    return socket;
}

Error bad_reply(const std::string& what) {
    return {ErrorCode::BadMessage, "ddprun-memory has answered with " + what};
}

}  // namespace

Result<CheckpointMemory> CheckpointMemory::connect(const std::string& socket,
                                                   const MemoryOwner& owner) {
    Result<UniqueFd> connected = connect_to(socket);
    if (!connected) {
        return connected.error();
    }
    CheckpointMemory memory(*std::move(connected));
    Result<Answer> answer = memory.ask({.verb = MemoryVerb::Hello,
                                        .series = owner.series,
                                        .rank = owner.rank,
                                        .key = {.generation = owner.generation}});
    if (!answer) {
        return answer.error();
    }
    memory.endpoint_ = std::move(answer->reply.endpoint);
    memory.key_.generation = owner.generation;
    return memory;
}

Result<void> CheckpointMemory::set_partner(const std::string& endpoint) {
    const Result<Answer> answer = ask({.verb = MemoryVerb::Partner, .endpoint = endpoint});
    return answer ? Result<void>() : Result<void>(answer.error());
}

void CheckpointMemory::begin_save(const SavedStep& saved) {
    key_.step = saved.step;
    key_.save = saved.save;
}

Result<std::vector<UniqueFd>> CheckpointMemory::begin(const std::vector<MemoryFile>& files) {
    Result<Answer> answer = ask({.verb = MemoryVerb::Begin, .key = key_, .files = files});
    if (!answer) {
        return answer.error();
    }
    if (answer->descriptors.size() != files.size()) {
        return bad_reply(
            fmt::format("{} descriptors for {} files", answer->descriptors.size(), files.size()));
    }
    return std::move(answer->descriptors);
}

Result<std::string> CheckpointMemory::written(const std::vector<ManifestFile>& files) {
    Result<Answer> answer = ask({.verb = MemoryVerb::Written, .key = key_, .files = files});
    return answer ? Result<std::string>(std::move(answer->reply.note)) : answer.error();
}

Result<void> CheckpointMemory::seal(const StepKey& key) {
    const Result<Answer> answer = ask({.verb = MemoryVerb::Seal, .key = key});
    return answer ? Result<void>() : Result<void>(answer.error());
}

Result<std::vector<MemoryStep>> CheckpointMemory::list() {
    Result<Answer> answer = ask({.verb = MemoryVerb::List});
    return answer ? Result<std::vector<MemoryStep>>(std::move(answer->reply.steps))
                  : answer.error();
}

Result<OpenFile> CheckpointMemory::open(const StepKey& key, const ManifestFile& file) {
    Result<Answer> answer = ask({.verb = MemoryVerb::Open, .key = key, .files = {file}});
    if (!answer) {
        return answer.error();
    }
    if (answer->descriptors.size() != 1) {
        return bad_reply("no descriptor for " + file.name);
    }
    OpenFile open{.fd = std::move(answer->descriptors.front()),
                  .size = file.size,
                  .path = file.name + " in memory"};
    struct stat status {};
    if (::fstat(open.fd.get(), &status) != 0 ||
        static_cast<std::uint64_t>(status.st_size) != file.size) {
        return bad_reply(fmt::format("{} of another size than {} bytes", file.name, file.size));
    }
    return open;
}

Result<void> CheckpointMemory::fetch(const StepKey& key, const ManifestFile& file,
                                     const std::string& endpoint) {
    const Result<Answer> answer =
        ask({.verb = MemoryVerb::Fetch, .key = key, .files = {file}, .endpoint = endpoint});
    return answer ? Result<void>() : Result<void>(answer.error());
}

Result<CheckpointMemory::Answer> CheckpointMemory::ask(const MemoryRequest& request) {
    if (!socket_.is_open()) {
        return Error{ErrorCode::ConnectionLost, "the connection to ddprun-memory has ended"};
    }
    const auto lost = [this](const Error& why) {
        socket_.reset();  // A late reply would be taken for the next one.
        return why;
    };
    const Result<void> sent = send_packet(socket_.get(), encode(request), {});
    if (!sent) {
        return lost(sent.error());
    }
    Result<MemoryPacket> packet = receive_packet(socket_.get());
    if (!packet) {
        return lost(packet.error());
    }
    Result<MemoryReply> reply = decode_memory_reply(packet->text);
    if (!reply) {
        return lost(reply.error());
    }
    if (reply->error) {
        return *reply->error;
    }
    return Answer{.reply = *std::move(reply), .descriptors = std::move(packet->descriptors)};
}

}  // namespace ddprun::worker
