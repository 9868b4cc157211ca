// Goal: whatever a worker prints, the console shows every byte once and in order, however the pipe
// cuts the stream. Method: LineSplitter against a model that reads one byte at a time; LineTail
// against the end of the stream; printable() against what a terminal may be given.
#include <string>
#include <string_view>

#include "agent/output/line_splitter.hpp"
#include "agent/output/line_tail.hpp"
#include "base/check.hpp"
#include "base/printable.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::agent {

namespace {

constexpr std::string_view kPrefix = "[n 0] ";

std::string shown_by_model(std::string_view stream, std::size_t line_bytes_max) {
    std::string out;
    std::string line;
    bool is_cut = false;
    char before = 0;
    const auto show = [&] {
        out.append(kPrefix).append(line).push_back('\n');
        line.clear();
    };
    for (const char byte : stream) {
        const bool is_end = byte == '\n' || byte == '\r';
        const bool is_second_half = byte == '\n' && before == '\r';
        before = byte;
        if (is_second_half) {
            continue;
        }
        if (!is_end) {
            line.push_back(byte);
            if (line.size() == line_bytes_max) {
                show();
                is_cut = true;
            }
            continue;
        }
        if (!line.empty() || (byte == '\n' && !is_cut)) {
            show();
        }
        is_cut = false;
    }
    if (!line.empty()) {
        show();
    }
    return out;
}

void check_printable(std::string_view bytes, std::size_t columns_max) {
    const std::string text = printable(bytes, columns_max);
    std::size_t columns = 0;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        DDP_CHECK(byte >= 0x20 && byte != 0x7f, unsigned{byte});
        columns += (byte & 0xc0U) != 0x80 ? 1 : 0;
    }
    DDP_CHECK(columns <= columns_max, columns, columns_max);
    // Well-formed text is shown as it is, so what was made printable stays the same.
    DDP_CHECK(printable(text, columns_max) == text, text);
}

void run(fuzz::Choices& choices) {
    const std::size_t line_bytes_max = 1 + choices.below(16);
    const std::size_t tail_bytes_max = choices.below(32);
    const std::size_t columns_max = 1 + choices.below(64);
    LineSplitter splitter(with_prefix(std::string(kPrefix)), line_bytes_max);
    LineTail tail(tail_bytes_max);
    std::string stream;
    std::string out;
    while (!choices.is_empty()) {
        const std::size_t size = choices.below(32);
        const std::string_view chunk = choices.bytes(size);
        stream.append(chunk);
        splitter.feed(chunk, out);
        tail.add(chunk);
        const std::size_t kept = std::min(stream.size(), tail_bytes_max);
        DDP_CHECK(tail.text() == std::string_view(stream).substr(stream.size() - kept), kept);
    }
    splitter.finish(out);
    const std::string expected = shown_by_model(stream, line_bytes_max);
    DDP_CHECK(out == expected, out, expected);
    check_printable(stream, columns_max);
}

}  // namespace

}  // namespace ddprun::agent

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::agent::run(choices);
    return 0;
}
