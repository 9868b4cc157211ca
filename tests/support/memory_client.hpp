#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/memory/protocol.hpp"

namespace ddprun::test {

/// Not open: nothing listens there.
inline UniqueFd connect_to(const std::string& name) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    auto* const generic = static_cast<sockaddr*>(static_cast<void*>(&address));
    if (::connect(socket.get(), generic, size) != 0) {
        socket.reset();
    }
    return socket;
}

inline worker::MemoryFile file_of(const std::string& name, const std::string& content) {
    return {.name = name, .size = content.size(), .xxh3_128 = worker::xxh3_128_hex(content)};
}

/// In place of a worker.
class MemoryClient {
public:
    explicit MemoryClient(const std::string& name) : socket_(connect_to(name)) {
        REQUIRE(socket_.is_open());
    }
    MemoryClient(const std::string& name, int rank, std::uint64_t generation = 1)
        : MemoryClient(name) {
        worker::MemoryRequest hello;
        hello.rank = rank;
        hello.key.generation = Generation(generation);
        endpoint_ = ask(hello).endpoint;
    }

    /// Must succeed.
    worker::MemoryReply ask(const worker::MemoryRequest& request) {
        worker::MemoryReply reply = try_to(request);
        if (reply.error) {
            FAIL(reply.error->what);
        }
        return reply;
    }
    worker::MemoryReply try_to(const worker::MemoryRequest& request) {
        send(encode(request));
        return receive();
    }
    void send(const std::string& text) {
        REQUIRE(worker::send_packet(socket_.get(), text, {}).has_value());
    }
    worker::MemoryReply receive() {
        Result<worker::MemoryPacket> packet = worker::receive_packet(socket_.get());
        REQUIRE(packet.has_value());
        files_ = std::move(packet->descriptors);
        Result<worker::MemoryReply> reply = worker::decode_memory_reply(packet->text);
        REQUIRE(reply.has_value());
        return *reply;
    }
    [[nodiscard]] bool is_closed() {
        const auto packet = worker::receive_packet(socket_.get());
        return packet.has_error() && packet.error().code == ErrorCode::ConnectionLost;
    }

    /// From now on the requests are of this save of their step.
    void count_saves(std::uint64_t save) { save_ = save; }

    void begin(std::int64_t step, const std::string& name, const std::string& content) {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::Begin;
        request.key.step = step;
        request.key.save = save_;
        request.files = {{.name = name, .size = content.size(), .xxh3_128 = {}}};
        ask(request);
        REQUIRE(files_.size() == 1);
        REQUIRE(::lseek(files_[0].get(), 0, SEEK_END) == static_cast<off_t>(content.size()));
        REQUIRE(::pwrite(files_[0].get(), content.data(), content.size(), 0) ==
                static_cast<ssize_t>(content.size()));
    }
    worker::MemoryReply finish(std::int64_t step, const std::string& name,
                               const std::string& content) {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::Written;
        request.key.step = step;
        request.key.save = save_;
        request.files = {file_of(name, content)};
        return ask(request);
    }
    worker::MemoryReply write(std::int64_t step, const std::string& name,
                              const std::string& content) {
        begin(step, name, content);
        return finish(step, name, content);
    }
    void name_partner(const std::string& endpoint) {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::Partner;
        request.endpoint = endpoint;
        ask(request);
    }
    void seal(std::int64_t step) {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::Seal;
        request.key.step = step;
        request.key.save = save_;
        ask(request);
    }
    std::vector<worker::MemoryStep> list() {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::List;
        return ask(request).steps;
    }
    /// The content of a file that was opened; none: it is not here.
    std::optional<std::string> read(std::int64_t step, const std::string& name,
                                    std::uint64_t generation = 1) {
        worker::MemoryRequest request;
        request.verb = worker::MemoryVerb::Open;
        request.key.generation = Generation(generation);
        request.key.step = step;
        request.key.save = save_;
        request.files = {{.name = name}};
        const worker::MemoryReply reply = try_to(request);
        if (reply.error) {
            CHECK(reply.error->code == ErrorCode::NotFound);
            return std::nullopt;
        }
        REQUIRE(files_.size() == 1);
        std::string content(static_cast<std::size_t>(::lseek(files_[0].get(), 0, SEEK_END)), ' ');
        REQUIRE(::pread(files_[0].get(), content.data(), content.size(), 0) ==
                static_cast<ssize_t>(content.size()));
        return content;
    }

    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
    [[nodiscard]] const std::vector<UniqueFd>& files() const { return files_; }

private:
    UniqueFd socket_;
    std::string endpoint_;
    std::uint64_t save_ = 0;
    std::vector<UniqueFd> files_;
};

}  // namespace ddprun::test
