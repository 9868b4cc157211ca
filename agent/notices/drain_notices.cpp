#include "agent/notices/drain_notices.hpp"

#include "agent/notices/aws_notices.hpp"
#include "agent/notices/command_notice.hpp"
#include "agent/notices/file_notice.hpp"
#include "base/overloaded.hpp"

namespace ddprun::agent {

DrainNotices::DrainNotices(boost::asio::io_context& io, const Limits& limits,
                           const std::vector<DrainSource>& sources, const NoticeEvents& events) {
    for (const DrainSource& source : sources) {
        std::visit(
            Overloaded{
                [&](const DrainOnAws& aws) {
                    all_.push_back(std::make_unique<AwsNotices>(io, limits, aws.metadata, events));
                },
                [&](const DrainOnFile& file) {
                    all_.push_back(std::make_unique<FileNotice>(io, limits, file.path, events));
                },
                [&](const DrainOnCommand& program) {
                    all_.push_back(
                        std::make_unique<CommandNotice>(io, limits, program.command, events));
                }},
            source);
    }
}

void DrainNotices::start() {
    for (const std::unique_ptr<DrainNotice>& one : all_) {
        one->start();
    }
}

void DrainNotices::stop() {
    for (const std::unique_ptr<DrainNotice>& one : all_) {
        one->stop();
    }
}

}  // namespace ddprun::agent
