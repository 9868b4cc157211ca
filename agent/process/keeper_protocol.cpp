#include "agent/process/keeper_protocol.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "base/limits.hpp"

namespace ddprun::agent {

namespace {

enum class Kind : std::uint8_t {
    Spawn = 1,
    Signal,
    Forward,
    Empty,
    Started,
    Exited,
    Emptied,
    NotEmptied,
    Terminal,
    Adopt,
    Adopted
};

/// Which of the ways to end a worker took, in an Exited.
enum class How : std::uint8_t { ExitCode = 1, Signal, ExecErrno };

class Writer {
public:
    explicit Writer(Kind kind) {
        number(std::uint32_t{0});  // The length, known at the end.
        number(kind);
    }

    template <typename T>
    void number(T value) {
        static_assert(std::is_trivially_copyable_v<T>);
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void string(std::string_view value) {
        number(static_cast<std::uint32_t>(value.size()));
        bytes_.append(value);
    }
    void generation(Generation value) { number(value.value()); }
    void local_rank(LocalRank value) { number(value.value()); }

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
    std::string bytes_;
};

/// Takes values off a body. After the first failure everything reads as zero and ok() is false.
class Reader {
public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}

    template <typename T>
    T number() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value{};
        if (!is_ok_ || rest_.size() < sizeof value) {
            is_ok_ = false;
            return T{};
        }
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_.remove_prefix(sizeof value);
        return value;
    }
    std::string string() {
        const auto size = number<std::uint32_t>();
        if (!is_ok_ || rest_.size() < size) {
            is_ok_ = false;
            return {};
        }
        std::string value(rest_.substr(0, size));
        rest_.remove_prefix(size);
        return value;
    }
    /// A count of elements that each take at least `element_bytes`: no more than can follow.
    std::uint32_t count(std::size_t element_bytes) {
        const auto value = number<std::uint32_t>();
        if (value > rest_.size() / element_bytes) {
            is_ok_ = false;
            return 0;
        }
        return value;
    }
    Generation generation() { return Generation(number<std::uint64_t>()); }
    LocalRank local_rank() { return LocalRank(number<int>()); }

    void fail() { is_ok_ = false; }
    [[nodiscard]] bool is_complete() const { return is_ok_ && rest_.empty(); }

private:
    std::string_view rest_;
    bool is_ok_ = true;
};

Result<std::string> encode(const KeeperSpawn& spawn) {
    Writer out(Kind::Spawn);
    out.generation(spawn.generation);
    out.local_rank(spawn.local_rank);
    out.number(static_cast<std::uint32_t>(spawn.command.size()));
    for (const std::string& argument : spawn.command) {
        out.string(argument);
    }
    out.number(static_cast<std::uint32_t>(spawn.environment.size()));
    for (const auto& [key, value] : spawn.environment) {
        out.string(key);
        out.string(value);
    }
    out.number(static_cast<std::uint32_t>(spawn.cpus.size()));
    for (const int cpu : spawn.cpus) {
        out.number(cpu);
    }
    out.string(spawn.page_variable);
    out.number(spawn.stdin_from);
    out.string(spawn.standby_variable);
    out.string(spawn.imports_variable);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperSignal& signal) {
    Writer out(Kind::Signal);
    out.generation(signal.generation);
    out.number(static_cast<std::uint32_t>(signal.local_ranks.size()));
    for (const LocalRank local_rank : signal.local_ranks) {
        out.local_rank(local_rank);
    }
    out.number(signal.signal);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperForward& forward) {
    Writer out(Kind::Forward);
    out.generation(forward.generation);
    out.number(forward.signal);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperEmpty& empty) {
    Writer out(Kind::Empty);
    out.generation(empty.generation);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperTerminal& terminal) {
    Writer out(Kind::Terminal);
    out.string(terminal.before);
    out.string(terminal.raw);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperAdopt& adopt) {
    Writer out(Kind::Adopt);
    out.generation(adopt.generation);
    out.local_rank(adopt.local_rank);
    out.number(static_cast<std::uint8_t>(adopt.has_page ? 1 : 0));
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperAdopted& adopted) {
    Writer out(Kind::Adopted);
    out.generation(adopted.generation);
    out.local_rank(adopted.local_rank);
    out.number(adopted.pid);
    out.string(adopted.page);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperStarted& started) {
    Writer out(Kind::Started);
    out.generation(started.generation);
    out.local_rank(started.local_rank);
    out.number(started.pid);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperExited& exited) {
    Writer out(Kind::Exited);
    out.generation(exited.generation);
    out.local_rank(exited.local_rank);
    out.number(exited.end.pid);
    if (exited.end.exit_code) {
        out.number(How::ExitCode);
        out.number(*exited.end.exit_code);
    } else if (exited.end.signal) {
        out.number(How::Signal);
        out.number(*exited.end.signal);
    } else {
        out.number(How::ExecErrno);
        out.number(exited.end.exec_errno.value_or(0));
    }
    out.number(static_cast<std::uint8_t>(exited.end.core_dumped ? 1 : 0));
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperEmptied& emptied) {
    Writer out(Kind::Emptied);
    out.generation(emptied.generation);
    return std::move(out).finish();
}

Result<std::string> encode(const KeeperNotEmptied& not_emptied) {
    Writer out(Kind::NotEmptied);
    out.generation(not_emptied.generation);
    out.string(not_emptied.what);
    return std::move(out).finish();
}

KeeperSpawn read_spawn(Reader& in) {
    KeeperSpawn spawn{in.generation(), in.local_rank(), {}, {}, {}, {}, {}};
    const std::uint32_t arguments = in.count(sizeof(std::uint32_t));
    spawn.command.reserve(arguments);
    for (std::uint32_t i = 0; i < arguments; ++i) {
        spawn.command.push_back(in.string());
    }
    const std::uint32_t variables = in.count(2 * sizeof(std::uint32_t));
    spawn.environment.reserve(variables);
    for (std::uint32_t i = 0; i < variables; ++i) {
        std::string key = in.string();
        std::string value = in.string();
        spawn.environment.emplace_back(std::move(key), std::move(value));
    }
    const std::uint32_t cpus = in.count(sizeof(int));
    spawn.cpus.reserve(cpus);
    for (std::uint32_t i = 0; i < cpus; ++i) {
        spawn.cpus.push_back(in.number<int>());
        // What no kernel has would only ask for memory.
        if (spawn.cpus.back() < 0 || spawn.cpus.back() >= Limits{}.cpus_max) {
            in.fail();
        }
    }
    spawn.page_variable = in.string();
    spawn.stdin_from = in.number<WorkerStdin>();
    spawn.standby_variable = in.string();
    spawn.imports_variable = in.string();
    if (spawn.command.empty() || spawn.stdin_from > WorkerStdin::Terminal) {
        in.fail();
    }
    return spawn;
}

KeeperSignal read_signal(Reader& in) {
    KeeperSignal signal{in.generation(), {}, 0};
    const std::uint32_t local_ranks = in.count(sizeof(int));
    signal.local_ranks.reserve(local_ranks);
    for (std::uint32_t i = 0; i < local_ranks; ++i) {
        signal.local_ranks.push_back(in.local_rank());
    }
    signal.signal = in.number<int>();
    return signal;
}

KeeperExited read_exited(Reader& in) {
    KeeperExited exited{in.generation(), in.local_rank(), {}};
    exited.end.pid = in.number<int>();
    const auto how = in.number<How>();
    const auto value = in.number<int>();
    switch (how) {
        case How::ExitCode:
            exited.end.exit_code = value;
            break;
        case How::Signal:
            exited.end.signal = value;
            break;
        case How::ExecErrno:
            exited.end.exec_errno = value;
            break;
        default:
            in.fail();
            break;
    }
    exited.end.core_dumped = in.number<std::uint8_t>() != 0;
    return exited;
}

template <typename Message>
Result<Message> checked(const Reader& in, Message message, std::string_view body) {
    if (!in.is_complete()) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("a message of {} bytes between agent and keeper is not one that "
                                 "this version knows: are both of one build?",
                                 body.size())};
    }
    return message;
}

}  // namespace

Result<std::string> encode_frame(const KeeperRequest& request) {
    return std::visit([](const auto& message) { return encode(message); }, request);
}

Result<std::string> encode_frame(const KeeperEvent& event) {
    return std::visit([](const auto& message) { return encode(message); }, event);
}

Result<KeeperRequest> decode_request(std::string_view body) {
    Reader in(body);
    KeeperRequest request;
    switch (in.number<Kind>()) {
        case Kind::Spawn:
            request = read_spawn(in);
            break;
        case Kind::Signal:
            request = read_signal(in);
            break;
        case Kind::Forward: {
            KeeperForward forward{in.generation(), 0};
            forward.signal = in.number<int>();
            request = forward;
            break;
        }
        case Kind::Empty:
            request = KeeperEmpty{in.generation()};
            break;
        case Kind::Adopt: {
            KeeperAdopt adopt{in.generation(), in.local_rank(), false};
            adopt.has_page = in.number<std::uint8_t>() != 0;
            request = adopt;
            break;
        }
        case Kind::Terminal: {
            KeeperTerminal terminal{in.string(), {}};
            terminal.raw = in.string();
            request = std::move(terminal);
            break;
        }
        default:
            in.fail();
            break;
    }
    return checked(in, std::move(request), body);
}

Result<KeeperEvent> decode_event(std::string_view body) {
    Reader in(body);
    KeeperEvent event;
    switch (in.number<Kind>()) {
        case Kind::Adopted: {
            KeeperAdopted adopted{in.generation(), in.local_rank(), 0, {}};
            adopted.pid = in.number<int>();
            adopted.page = in.string();
            event = std::move(adopted);
            break;
        }
        case Kind::Started: {
            KeeperStarted started{in.generation(), in.local_rank(), 0};
            started.pid = in.number<int>();
            event = started;
            break;
        }
        case Kind::Exited:
            event = read_exited(in);
            break;
        case Kind::Emptied:
            event = KeeperEmptied{in.generation()};
            break;
        case Kind::NotEmptied: {
            KeeperNotEmptied not_emptied{in.generation(), {}};
            not_emptied.what = in.string();
            event = std::move(not_emptied);
            break;
        }
        default:
            in.fail();
            break;
    }
    return checked(in, std::move(event), body);
}

}  // namespace ddprun::agent
