#include "tests/scenario/transcript.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "tests/scenario/render.hpp"

namespace ddprun::sim {

namespace {

/// A line that cannot be understood; caught in replay().
struct BadCommand {
    std::string why;
};

int number_of(const std::string& text) {
    int value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc() || end != text.data() + text.size()) {
        throw BadCommand{"not a number: " + text};
    }
    return value;
}

Milliseconds duration_of(const std::string& text) {
    const std::size_t unit = text.find_first_not_of("-0123456789");
    const std::string name = unit == std::string::npos ? "" : text.substr(unit);
    const int count = number_of(text.substr(0, unit));
    if (name == "ms") {
        return Milliseconds(count);
    }
    if (name == "s") {
        return Milliseconds(count * 1000);
    }
    throw BadCommand{"not a duration in ms or s: " + text};
}

/// The words of a command, each taken once; what is left at the end is an error.
class Words {
public:
    explicit Words(const std::string& line) {
        std::istringstream stream(line);
        std::string word;
        while (stream >> word) {
            const std::size_t equals = word.find('=');
            if (equals == std::string::npos) {
                plain_.push_back(word);
            } else {
                options_[word.substr(0, equals)] = word.substr(equals + 1);
            }
        }
    }

    std::string next() {
        if (taken_ == plain_.size()) {
            throw BadCommand{"a word is missing"};
        }
        return plain_[taken_++];
    }

    std::optional<std::string> option(const std::string& name) {
        const auto found = options_.find(name);
        if (found == options_.end()) {
            return std::nullopt;
        }
        std::string value = found->second;
        options_.erase(found);
        return value;
    }

    void expect_end() const {
        if (taken_ != plain_.size() || !options_.empty()) {
            throw BadCommand{"a word too many"};
        }
    }

private:
    std::vector<std::string> plain_;
    std::map<std::string, std::string> options_;
    std::size_t taken_ = 0;
};

/// The state that a real agent would remember.
struct Agent {
    std::optional<ConnectionId> connection;
    rdzv::Join identity;
    std::string token;
    std::optional<rdzv::HeldGeneration> held;
    Generation newest;  ///< that it was ever told to start
    bool is_beating = false;
    bool is_mute = false;
    std::uint16_t next_port = 1;  ///< each Stopped comes with a fresh store socket
};

class Scenario {
public:
    explicit Scenario(bool has_leases)
        : has_leases_(has_leases), coordinator_(fresh_coordinator(Rng(1))) {}

    std::vector<std::string> run(const std::string& line);

private:
    [[nodiscard]] std::unique_ptr<rdzv::Coordinator> fresh_coordinator(Rng rng) const {
        return std::make_unique<rdzv::Coordinator>(
            JobId("job"), rdzv::CoordinatorOptions{.limits = {}, .has_leases = has_leases_}, rng);
    }
    void settings(Words& words);
    void read_settings(Words& words, rdzv::JobSettings& settings);
    void join(Words& words, bool is_same_process);
    void report(const std::string& command, Words& words);
    void unfit(Words& words);
    void watch(const std::string& command, Words& words);
    void pass(Words& words);
    void order(Words& words);
    void say(std::string text) { out_.push_back("    " + std::move(text)); }
    void step(const rdzv::Input& input, bool hides_acknowledge = false);
    void beat_all();
    void receive(const std::string& name, Agent& agent, const rdzv::RendezvousMessage& message);
    void show(const rdzv::Effect& effect, bool hides_acknowledge);
    std::string name_of(ConnectionId connection) const;
    Agent& agent_of(Words& words);
    void tell(Agent& agent, rdzv::AgentMessage message);

    void restart(Words& words);

    bool has_leases_;
    std::unique_ptr<rdzv::Coordinator> coordinator_;
    std::optional<rdzv::RunRecord> saved_;
    Instant start_{};
    Instant now_{};
    rdzv::JobSettings settings_;
    std::map<std::string, Agent> agents_;
    std::map<ConnectionId, std::string> names_;
    std::uint64_t connections_ = 0;
    std::string phase_ = "none";
    std::vector<std::string> out_;
    std::string at_;  ///< said before the next effect, so that silent moments leave no line
};

std::string Scenario::name_of(ConnectionId connection) const {
    const auto found = names_.find(connection);
    if (found == names_.end()) {
        return fmt::format("connection {}", connection.value());
    }
    const Agent& agent = agents_.at(found->second);
    return agent.connection == connection ? found->second : found->second + " (old connection)";
}

Agent& Scenario::agent_of(Words& words) {
    const std::string name = words.next();
    const auto found = agents_.find(name);
    if (found == agents_.end()) {
        throw BadCommand{"no such agent: " + name};
    }
    return found->second;
}

void Scenario::tell(Agent& agent, rdzv::AgentMessage message) {
    if (!agent.connection) {
        throw BadCommand{"this agent has no connection"};
    }
    step(rdzv::Received{*agent.connection, std::move(message)});
}

void Scenario::receive(const std::string& name, Agent& agent,
                       const rdzv::RendezvousMessage& message) {
    if (const auto* accepted = std::get_if<rdzv::Accepted>(&message)) {
        agent.token = accepted->run_token;
        agent.is_beating = accepted->lease.count() > 0;
    } else if (const auto* start = std::get_if<rdzv::Start>(&message)) {
        agent.held = rdzv::HeldGeneration{.generation = start->generation,
                                          .digest = start->digest,
                                          .group_rank = start->group_rank,
                                          .group_world_size = start->group_world_size,
                                          .base_rank = start->base_rank,
                                          .world_size = start->world_size,
                                          .restart_count = start->restart_count,
                                          .node_losses = start->node_losses,
                                          .store = start->store};
        agent.newest = start->generation;
        agents_[name].next_port += 1;
    }
}

void Scenario::show(const rdzv::Effect& effect, bool hides_acknowledge) {
    if (const auto* send = std::get_if<rdzv::Send>(&effect)) {
        if (hides_acknowledge && std::holds_alternative<rdzv::Acknowledge>(send->message)) {
            return;
        }
        say(fmt::format("{} <- {}", name_of(send->connection), render(send->message)));
        const auto name = names_.find(send->connection);
        if (name != names_.end() && agents_[name->second].connection == send->connection) {
            receive(name->second, agents_[name->second], send->message);
        }
    } else if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
        say(fmt::format("{} closed: {}", name_of(close->connection), close->reason));
        const auto name = names_.find(close->connection);
        if (name != names_.end() && agents_[name->second].connection == close->connection) {
            agents_[name->second].connection.reset();
        }
    } else if (const auto* trace = std::get_if<rdzv::Trace>(&effect)) {
        say("| " + trace->text);
    } else if (const auto* ordered = std::get_if<rdzv::Ordered>(&effect)) {
        say(fmt::format("operator <- {}: {}",
                        rdzv::word_of(ordered->reply.fault, rdzv::kOrderFaultNames),
                        ordered->reply.text));
    }
}

/// Sends an operator's order.
void Scenario::order(Words& words) {
    const std::string name = words.next();
    const auto& names = rdzv::kOperatorActionNames;
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (found == names.end()) {
        throw BadCommand{"no such order: " + name};
    }
    rdzv::OperatorOrder order{.job = JobId("job"), .action = found->second};
    order.node = words.option("node").value_or("");
    order.duration = duration_of(words.option("for").value_or("0s"));
    order.nodes = number_of(words.option("nodes").value_or("0"));
    order.by = "alice@head";
    words.expect_end();
    step(rdzv::OrderGiven{.number = 1, .order = order, .from = "10.0.0.9"});
}

void Scenario::step(const rdzv::Input& input, bool hides_acknowledge) {
    rdzv::Effects effects;
    coordinator_->step(now_, input, effects);
    const std::size_t before = out_.size();
    effects.for_each([&](const rdzv::Effect& effect) { show(effect, hides_acknowledge); });
    const std::string phase =
        coordinator_->run() == nullptr ? "none" : render(coordinator_->run()->phase);
    if (phase != phase_) {
        say("= " + phase);
        phase_ = phase;
    }
    if (!at_.empty() && out_.size() > before) {
        out_.insert(out_.begin() + static_cast<std::ptrdiff_t>(before), std::exchange(at_, ""));
    }
}

void Scenario::read_settings(Words& words, rdzv::JobSettings& settings) {
    if (const auto nnodes = words.option("nnodes")) {
        const std::size_t colon = nnodes->find(':');
        const std::size_t last = nnodes->find_last_of(":,");
        settings.min_nodes = number_of(nnodes->substr(0, nnodes->find_first_of(":,")));
        settings.max_nodes =
            last == std::string::npos ? settings.min_nodes : number_of(nnodes->substr(last + 1));
        settings.node_sizes.clear();
        std::size_t begin = 0;
        while (colon == std::string::npos && last != std::string::npos && begin <= last + 1) {
            const std::size_t end = std::min(nnodes->find(',', begin), nnodes->size());
            settings.node_sizes.push_back(number_of(nnodes->substr(begin, end - begin)));
            begin = end + 1;
        }
    }
    const auto number = [&words](const char* name, int& value) {
        if (const auto text = words.option(name)) {
            value = number_of(*text);
        }
    };
    const auto duration = [&words](const char* name, Milliseconds& value) {
        if (const auto text = words.option(name)) {
            value = duration_of(*text);
        }
    };
    if (const auto same = words.option("same")) {
        settings.same = *same == "strict" ? rdzv::Sameness::Strict
                        : *same == "off"  ? rdzv::Sameness::Off
                                          : rdzv::Sameness::Warn;
    }
    number("node_unit", settings.node_unit);
    number("max_restarts", settings.max_restarts);
    number("max_node_losses", settings.max_node_losses);
    number("max_restarts_at_step", settings.max_restarts_at_step);
    number("memory_replicas", settings.memory_replicas);
    duration("patience", settings.patience);
    duration("join_timeout", settings.join_timeout);
    duration("grow_delay", settings.grow_delay);
    duration("failure_grace", settings.failure_grace);
    duration("shutdown_timeout", settings.shutdown_timeout);
    if (const auto timeout = words.option("hang_timeout")) {
        settings.learns_hang_timeout = *timeout == "auto";
        settings.hang_timeout = duration_of(*timeout == "auto" ? "0ms" : *timeout);
    }
    if (const auto grow = words.option("grow")) {
        settings.grow = *grow == "auto";
    }
}

/// `join`: a new process. `rejoin`: the same one on a new connection.
void Scenario::join(Words& words, bool is_same_process) {
    const std::string name = words.next();
    Agent& agent = agents_[name];
    if (!is_same_process) {
        agent = Agent{.connection = {}, .next_port = agent.next_port};
        agent.identity.job = JobId("job");
        agent.identity.node = NodeId(words.option("node").value_or(name));
        agent.identity.hostname = words.option("host").value_or(name);
        agent.identity.slots = number_of(words.option("slots").value_or("1"));
        agent.identity.role = words.option("role").value_or("default");
        agent.identity.topology_key = words.option("topology").value_or("");
        agent.identity.fingerprint.program = words.option("program").value_or("");
        agent.identity.fingerprint.torch = words.option("torch").value_or("");
        agent.identity.addresses = {words.option("address").value_or("10.0.0." + name)};
        agent.identity.settings = settings_;
        read_settings(words, agent.identity.settings);
        if (const auto rank = words.option("node_rank")) {
            agent.identity.node_rank = number_of(*rank);
        }
    }
    rdzv::Join join = agent.identity;
    join.store = StoreAddress{name, agent.next_port};
    join.run_token = agent.token;
    join.held = agent.held;
    join.newest = agent.newest;
    if (const auto held = words.option("held")) {  // some that is not the current one; 0: none
        join.held = rdzv::HeldGeneration{
            .generation = Generation(static_cast<std::uint64_t>(number_of(*held))),
            .digest = "another digest"};
        if (*held == "0") {
            join.held.reset();
        }
        agent.held = join.held;
    }
    words.expect_end();
    agent.connection = ConnectionId(++connections_);
    names_[*agent.connection] = name;
    tell(agent, std::move(join));
}

/// On a connection of its own: the check of a new process failed before it joined, or that of the
/// same one that had joined and was cut off since.
void Scenario::unfit(Words& words) {
    const std::string name = words.next();
    const std::string exit = words.next();
    const bool is_itself = words.option("process").value_or("new") == "same";
    rdzv::Unfit message{.job = JobId("job"),
                        .node = NodeId(name),
                        .process = "another",
                        .hostname = name,
                        .why = fmt::format("its preflight command exited with code {}", exit)};
    if (is_itself) {
        const Agent& agent = agents_.at(name);
        message.process = agent.identity.process;
        message.run_token = agent.token;
    }
    words.expect_end();
    step(rdzv::Received{ConnectionId(++connections_), std::move(message)});
}

/// Sends an agent's report about its workers or itself.
void Scenario::report(const std::string& command, Words& words) {
    Agent& agent = agent_of(words);
    Generation generation = agent.held ? agent.held->generation : Generation();
    if (const auto other = words.option("generation")) {
        generation = Generation(static_cast<std::uint64_t>(number_of(*other)));
    }
    rdzv::AgentMessage message = rdzv::Goodbye{};
    if (command == "finish") {
        message = rdzv::WorkerFinished{generation, LocalRank(number_of(words.next()))};
    } else if (command == "fail") {
        rdzv::WorkerFailed failed{generation, LocalRank(number_of(words.next())), {}};
        const auto number = [&words](const char* name) {
            const auto text = words.option(name);
            return text ? std::optional<int>(number_of(*text)) : std::nullopt;
        };
        failed.evidence.exit_code = number("exit");
        failed.evidence.signal = number("signal");
        failed.evidence.exec_errno = number("exec_errno");
        failed.evidence.quiet_for = duration_of(words.option("hung").value_or("0ms"));
        failed.evidence.hung = failed.evidence.quiet_for > Milliseconds::zero();
        if (const std::optional<int> at = number("step")) {
            failed.evidence.progress = static_cast<std::uint64_t>(*at);
        }
        failed.evidence.program = "./train";
        failed.evidence.core_dumped = words.option("core").has_value();
        failed.evidence.stderr_tail = words.option("words").value_or("");
        failed.evidence.age = duration_of(words.option("age").value_or("0ms"));
        message = failed;
    } else if (command == "quiet") {
        message = rdzv::Quiet{generation, duration_of(words.next())};
    } else if (command == "stopped") {
        message = rdzv::Stopped{generation, {agent.identity.hostname, agent.next_port}};
        agent.held.reset();
    } else if (command == "leave") {
        rdzv::Leave leave{.signal = number_of(words.next())};
        leave.within = duration_of(words.option("within").value_or("0ms"));
        message = leave;
    } else if (command == "unkillable") {
        message = rdzv::Unkillable{generation};
    } else if (command == "goodbye") {
        if (const auto code = words.option("unfit")) {
            message =
                rdzv::Goodbye{fmt::format("its preflight command exited with code {}", *code)};
        }
    } else if (command == "beat") {
        message = rdzv::Beat{static_cast<std::uint64_t>(number_of(words.next()))};
    }
    words.expect_end();
    tell(agent, std::move(message));
}

/// The daemon dies and another one starts, with the record of this moment, with the one that was
/// saved before, or with none. Agents notice and keep what they hold.
void Scenario::restart(Words& words) {
    const std::string memory = words.next();
    words.expect_end();
    const std::optional<rdzv::RunRecord> record = memory == "recorded" ? coordinator_->record(now_)
                                                  : memory == "saved"  ? saved_
                                                                       : std::nullopt;
    coordinator_ = fresh_coordinator(Rng(2));
    for (auto& [name, agent] : agents_) {
        agent.connection.reset();
        agent.is_beating = false;
    }
    phase_ = "none";
    if (record) {
        // Through the journal's own form.
        const Result<rdzv::RunRecord> read =
            rdzv::decode<rdzv::RunRecord>(rdzv::encode(*record), Limits());
        if (!read || *read != *record) {
            throw BadCommand{"the record did not survive its own encoding"};
        }
        const Result<void> restored = coordinator_->restore(now_, *read);
        say(restored ? "= " + (phase_ = render(coordinator_->run()->phase))
                     : restored.error().what);
    }
}

/// Connections, and looking without changing anything.
void Scenario::watch(const std::string& command, Words& words) {
    if (command == "explain") {
        say(fmt::format("\"{}\"", coordinator_->explain()));
    } else if (command == "deadline") {
        const std::optional<Instant> deadline = coordinator_->next_deadline();
        say(deadline ? "in " + render_duration(*deadline - now_) : "none");
    } else if (command == "done") {
        say(fmt::format("{}{}", coordinator_->is_done() ? "done" : "not done",
                        coordinator_->is_forgettable(now_) ? ", forgettable" : ""));
    } else if (command == "timeline") {
        for (const rdzv::TimelineEvent& event : coordinator_->run()->timeline) {
            say(fmt::format("{} {}", render_duration(event.at), event.text));
        }
    } else if (command == "budgets") {
        const rdzv::Run& run = *coordinator_->run();
        say(fmt::format("restarts {}, node losses {}", run.budgets.restarts_used,
                        run.budgets.node_losses_used));
    } else {
        Agent& agent = agent_of(words);
        words.expect_end();
        if (command == "drop") {
            agent.connection.reset();  // only this end knows
            return;
        }
        if (command == "again") {
            tell(agent, agent.identity);
            return;
        }
        if (command == "mute" || command == "unmute") {
            agent.is_mute = command == "mute";
            return;
        }
        if (!agent.connection) {
            throw BadCommand{"this agent has no connection"};
        }
        const ConnectionId connection = *std::exchange(agent.connection, std::nullopt);
        step(rdzv::ConnectionEnded{connection, command == "fin"});
    }
    words.expect_end();
}

void Scenario::beat_all() {
    for (auto& [name, agent] : agents_) {
        if (agent.connection && agent.is_beating && !agent.is_mute) {
            step(rdzv::Received{*agent.connection, rdzv::Beat{1}}, true);
        }
    }
}

/// Lets time pass as a shell does: beats arrive, deadlines are judged when they are due.
void Scenario::pass(Words& words) {
    const Instant end = now_ + duration_of(words.next());
    words.expect_end();
    Instant beat_at = now_ + Limits{}.beat_interval;
    while (true) {
        const Instant due = coordinator_->next_deadline().value_or(end);
        now_ = std::min(std::max(due, now_), std::min(beat_at, end));
        at_ = fmt::format("    at {}", render_duration(now_ - start_));
        if (now_ == beat_at) {
            beat_all();
            beat_at += Limits{}.beat_interval;
        }
        if (coordinator_->next_deadline().value_or(end + Milliseconds(1)) <= now_) {
            step(rdzv::Tick{});
            if (coordinator_->next_deadline().value_or(end + Milliseconds(1)) <= now_) {
                throw BadCommand{"a deadline in the past after it was judged"};
            }
        }
        if (now_ >= end) {
            break;
        }
    }
    at_.clear();
}

std::vector<std::string> Scenario::run(const std::string& line) {
    out_.clear();
    Words words(line);
    std::string command = words.next();
    static const std::map<std::string, int> kKinds = {
        {"finish", 1},     {"fail", 1},    {"quiet", 1},    {"stopped", 1}, {"leave", 1},
        {"unkillable", 1}, {"goodbye", 1}, {"beat", 1},     {"explain", 2}, {"done", 2},
        {"timeline", 2},   {"fin", 2},     {"reset", 2},    {"drop", 2},    {"again", 2},
        {"mute", 2},       {"unmute", 2},  {"deadline", 2}, {"budgets", 2}, {"settings", 3},
        {"join", 4},       {"rejoin", 5},  {"pass", 6},     {"held_up", 7}, {"tick", 8},
        {"restart", 9},    {"save", 10},   {"journal", 11}, {"unfit", 12},  {"order", 13}};
    const auto kind = kKinds.find(command);
    switch (kind == kKinds.end() ? 0 : kind->second) {
        case 1:
            report(command, words);
            break;
        case 2:
            watch(command, words);
            break;
        case 3:
            read_settings(words, settings_);
            words.expect_end();
            break;
        case 4:
        case 5:
            join(words, command == "rejoin");
            break;
        case 6:
            pass(words);
            break;
        case 7: {
            const Milliseconds by = duration_of(words.next());
            now_ += by;
            step(rdzv::HeldUp{by});
            break;
        }
        case 8:
            step(rdzv::Tick{});
            break;
        case 9:
            restart(words);
            break;
        case 10:
            saved_ = coordinator_->record(now_);
            break;
        case 11:
            step(rdzv::Durability{words.next() == "fails" ? "the disk is full" : ""});
            break;
        case 12:
            unfit(words);
            break;
        case 13:
            order(words);
            break;
        default:
            throw BadCommand{"no such command: " + command};
    }
    return std::move(out_);
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    std::string line;
    while (std::getline(stream, line)) {
        lines.push_back(line);
    }
    return lines;
}

}  // namespace

Result<std::string> replay(const std::string& transcript) {
    std::unique_ptr<Scenario> scenario;
    std::string replayed;
    std::size_t number = 0;
    for (const std::string& line : lines_of(transcript)) {
        ++number;
        if (line.starts_with("    ")) {
            continue;  // expected trace; what it is now is written instead
        }
        replayed += line + "\n";
        if (line.empty() || line.starts_with("#")) {
            continue;
        }
        if (line.starts_with("scenario")) {
            scenario = std::make_unique<Scenario>(!line.ends_with("(no leases)"));
            continue;
        }
        if (!scenario) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("line {}: a command before the first scenario", number)};
        }
        try {
            for (const std::string& trace : scenario->run(line)) {
                replayed += trace + "\n";
            }
        } catch (const BadCommand& bad) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("line {}: {}: {}", number, line, bad.why)};
        }
    }
    return replayed;
}

std::string first_difference(const std::string& expected, const std::string& actual) {
    constexpr std::size_t kContext = 12;
    const std::vector<std::string> left = lines_of(expected);
    const std::vector<std::string> right = lines_of(actual);
    std::size_t at = 0;
    while (at < left.size() && at < right.size() && left[at] == right[at]) {
        ++at;
    }
    if (at == left.size() && at == right.size()) {
        return {};
    }
    std::string text;
    for (std::size_t i = at - std::min(at, kContext); i < at; ++i) {
        text += "  " + left[i] + "\n";
    }
    for (std::size_t i = at; i < std::min(left.size(), at + kContext); ++i) {
        text += "- " + left[i] + "\n";
    }
    for (std::size_t i = at; i < std::min(right.size(), at + kContext); ++i) {
        text += "+ " + right[i] + "\n";
    }
    return text;
}

}  // namespace ddprun::sim
