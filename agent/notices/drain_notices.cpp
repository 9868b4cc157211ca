#include "agent/notices/drain_notices.hpp"

#include "base/overloaded.hpp"

namespace ddprun::agent {

DrainNotices::DrainNotices(boost::asio::io_context& io, const Limits& limits,
                           const std::vector<DrainSource>& sources, const NoticeEvents& events) {
    for (const DrainSource& source : sources) {
        std::visit(
            Overloaded{
                [&](const DrainOnAws& aws) {
                    aws_.push_back(std::make_unique<AwsNotices>(io, limits, aws.metadata, events));
                },
                [&](const DrainOnFile& file) {
                    files_.push_back(std::make_unique<FileNotice>(io, limits, file.path, events));
                },
                [&](const DrainOnCommand& program) {
                    commands_.push_back(
                        std::make_unique<CommandNotice>(io, limits, program.command, events));
                }},
            source);
    }
}

void DrainNotices::start() {
    for (const auto& one : aws_) {
        one->start();
    }
    for (const auto& one : files_) {
        one->start();
    }
    for (const auto& one : commands_) {
        one->start();
    }
}

void DrainNotices::stop() {
    for (const auto& one : aws_) {
        one->stop();
    }
    for (const auto& one : files_) {
        one->stop();
    }
    for (const auto& one : commands_) {
        one->stop();
    }
}

}  // namespace ddprun::agent
