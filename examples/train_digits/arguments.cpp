#include "examples/train_digits/arguments.hpp"

#include <CLI/CLI.hpp>

namespace digits {

Parsed parse_arguments(int argc, char** argv) {
    Parsed parsed;
    Arguments& arguments = parsed.arguments;
    arguments.data = TRAIN_DIGITS_DATA;
    CLI::App app(
        "Trains a digit classifier on all workers of a job. Alone it is a job of one worker; "
        "ddprun --nproc-per-node 2 train_digits starts two.");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", arguments.epochs,
                   "train until this many are done, those of earlier runs included")
        ->check(CLI::Range(1, 1'000'000));
    app.add_option("--batch-size", arguments.batch_size, "images per worker and step")
        ->check(CLI::Range(1, 100'000));
    app.add_option("--lr", arguments.lr, "Adam's learning rate")->check(CLI::PositiveNumber);
    app.add_option("--seed", arguments.seed, "of the weights and the shuffling");
    app.add_option("--checkpoint-dir", arguments.checkpoint_dir,
                   "where checkpoints are written and looked for; all nodes must see it");
    app.add_option("--min-epoch-seconds", arguments.min_epoch_seconds,
                   "pad short epochs to this long, to have something to watch")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--data", arguments.data, "the images: lines of 64 pixels from 0 to 16, label");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
    }
    return parsed;
}

}  // namespace digits
