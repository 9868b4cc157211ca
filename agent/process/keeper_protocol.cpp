#include "agent/process/keeper_protocol.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <boost/mp11/algorithm.hpp>
#include <boost/mp11/list.hpp>
#include <fmt/format.h>

#include "base/is.hpp"
#include "base/limits.hpp"

namespace ddprun::agent {

namespace {

/// The first byte of a message is its place here, from 1.
using Messages = boost::mp11::mp_list<KeeperSpawn, KeeperSignal, KeeperForward, KeeperEmpty,
                                      KeeperStarted, KeeperExited, KeeperEmptied, KeeperNotEmptied,
                                      KeeperTerminal, KeeperAdopt, KeeperAdopted>;
template <typename Message>
constexpr std::uint8_t kKind = boost::mp11::mp_find<Messages, Message>::value + 1;

/// Which of the ways to end a worker took, in an Exited.
enum class How : std::uint8_t { ExitCode = 1, Signal, ExecErrno };

/// A number, an enumerator or a Tagged number, which travels as its bytes.
template <typename T>
concept Plain = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t);

class Writer {
public:
    explicit Writer(std::uint8_t kind) {
        put(std::uint32_t{0});  // The length, known at the end.
        put(kind);
    }

    template <typename... Fields>
    void take(const Fields&... fields) {
        (put(fields), ...);
    }

    Result<std::string> finish() && {
        const std::size_t body = bytes_.size() - sizeof(std::uint32_t);
        if (body > kKeeperFrameBytesMax) {
            return Error{ErrorCode::LimitExceeded,
                         fmt::format("a message of {} bytes is more than the {} that the keeper "
                                     "takes: shorten the worker's arguments or environment",
                                     body, kKeeperFrameBytesMax)};
        }
        const auto length = static_cast<std::uint32_t>(body);
        std::memcpy(bytes_.data(), &length, sizeof length);
        return std::move(bytes_);
    }

private:
    template <Plain T>
    void put(const T& value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void put(const std::string& value) {
        put(static_cast<std::uint32_t>(value.size()));
        bytes_.append(value);
    }
    void put(const std::pair<std::string, std::string>& value) { take(value.first, value.second); }
    template <typename T>
    void put(const std::vector<T>& values) {
        put(static_cast<std::uint32_t>(values.size()));
        for (const T& value : values) {
            put(value);
        }
    }
    void put(const WorkerEnd& end) {
        const How how = end.exit_code ? How::ExitCode : end.signal ? How::Signal : How::ExecErrno;
        const int value = end.exit_code.value_or(end.signal.value_or(end.exec_errno.value_or(0)));
        take(end.pid, how, value, end.core_dumped);
    }

    std::string bytes_;
};

/// Takes values off a body. After the first failure everything reads as zero.
class Reader {
public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}

    template <typename... Fields>
    void take(Fields&... fields) {
        (get(fields), ...);
    }
    [[nodiscard]] bool is_complete() const { return is_ok_ && rest_.empty(); }

private:
    [[nodiscard]] std::string_view bytes(std::size_t size) {
        is_ok_ = is_ok_ && rest_.size() >= size;
        const std::string_view taken = rest_.substr(0, is_ok_ ? size : 0);
        rest_.remove_prefix(taken.size());
        return taken;
    }
    template <Plain T>
    void get(T& value) {
        const std::string_view read = bytes(sizeof value);
        std::copy(read.begin(), read.end(), reinterpret_cast<char*>(&value));
    }
    void get(bool& value) {
        std::uint8_t byte = 0;
        get(byte);
        value = byte != 0;
    }
    void get(std::string& value) {
        std::uint32_t size = 0;
        get(size);
        value = bytes(size);
    }
    void get(std::pair<std::string, std::string>& value) { take(value.first, value.second); }
    /// Grows with what was read: a count alone asks for no memory.
    template <typename T>
    void get(std::vector<T>& values) {
        std::uint32_t count = 0;
        get(count);
        while (is_ok_ && values.size() < count) {
            get(values.emplace_back());
        }
    }
    void get(WorkerEnd& end) {
        How how{};
        int value = 0;
        take(end.pid, how, value, end.core_dumped);
        is_ok_ = is_ok_ && how >= How::ExitCode && how <= How::ExecErrno;
        (how == How::ExitCode ? end.exit_code
         : how == How::Signal ? end.signal
                              : end.exec_errno) = value;
    }

    std::string_view rest_;
    bool is_ok_ = true;
};

// The fields of each message, in the order in which they travel.
void visit(Is<KeeperSpawn> auto& m, auto& io) {
    io.take(m.generation, m.local_rank, m.command, m.environment, m.cpus, m.page_variable,
            m.stdin_from, m.standby_variable, m.imports_variable);
}
void visit(Is<KeeperSignal> auto& m, auto& io) {
    io.take(m.generation, m.local_ranks, m.signal);
}
void visit(Is<KeeperForward> auto& m, auto& io) {
    io.take(m.generation, m.signal);
}
void visit(Is<KeeperEmpty> auto& m, auto& io) {
    io.take(m.generation);
}
void visit(Is<KeeperTerminal> auto& m, auto& io) {
    io.take(m.before, m.raw);
}
void visit(Is<KeeperAdopt> auto& m, auto& io) {
    io.take(m.generation, m.local_rank, m.has_page);
}
void visit(Is<KeeperAdopted> auto& m, auto& io) {
    io.take(m.generation, m.local_rank, m.pid, m.page);
}
void visit(Is<KeeperStarted> auto& m, auto& io) {
    io.take(m.generation, m.local_rank, m.pid);
}
void visit(Is<KeeperExited> auto& m, auto& io) {
    io.take(m.generation, m.local_rank, m.end);
}
void visit(Is<KeeperEmptied> auto& m, auto& io) {
    io.take(m.generation);
}
void visit(Is<KeeperNotEmptied> auto& m, auto& io) {
    io.take(m.generation, m.what);
}

bool is_sound(const auto& /*message*/) {
    return true;
}
bool is_sound(const KeeperSpawn& spawn) {
    const bool has_possible_cpus = std::all_of(spawn.cpus.begin(), spawn.cpus.end(), [](int cpu) {
        return cpu >= 0 && cpu < Limits{}.cpus_max;  // A larger one would only cost memory.
    });
    return has_possible_cpus && !spawn.command.empty() && spawn.stdin_from <= WorkerStdin::Terminal;
}

template <typename... Ms>
Result<std::string> encode(const std::variant<Ms...>& message) {
    return std::visit(
        []<typename M>(const M& m) {
            Writer out(kKind<M>);
            visit(m, out);
            return std::move(out).finish();
        },
        message);
}

/// Whether the body is that kind of message; then it is in `all`.
template <typename M>
bool decode_as(std::string_view body, auto& all) {
    Reader in(body);
    std::uint8_t kind = 0;
    in.take(kind);
    if (kind != kKind<M>) {
        return false;
    }
    M& message = all.template emplace<M>();
    visit(message, in);
    return in.is_complete() && is_sound(message);
}

template <typename... Ms>
Result<std::variant<Ms...>> decode(std::string_view body,
                                   std::type_identity<std::variant<Ms...>> /*all*/) {
    std::variant<Ms...> message;
    if (!(decode_as<Ms>(body, message) || ...)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("a message of {} bytes between agent and keeper is not one that "
                                 "this version knows: are both of one build?",
                                 body.size())};
    }
    return message;
}

}  // namespace

Result<std::string> encode_frame(const KeeperRequest& request) {
    return encode(request);
}

Result<std::string> encode_frame(const KeeperEvent& event) {
    return encode(event);
}

Result<KeeperRequest> decode_request(std::string_view body) {
    return decode(body, std::type_identity<KeeperRequest>());
}

Result<KeeperEvent> decode_event(std::string_view body) {
    return decode(body, std::type_identity<KeeperEvent>());
}

}  // namespace ddprun::agent
