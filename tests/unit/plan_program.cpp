#include <algorithm>
#include <csignal>

#include "launcher/machine/real_surroundings.hpp"
#include "tests/unit/plan_fake_surroundings.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace ddprun::launcher::test;

namespace {

void furnish(FakeSurroundings& machine) {
    machine.executables.insert({"./train", "./tool.py", "bin/app", "/opt/bin/python", "./python3"});
    machine.files.insert({"./script", "train", "data.py", "/usr/bin/readme", "./notes.py",
                          "tool.py", "notes.py", "sub/run.sh"});
    machine.folders.insert({"./package", "package.py", "bin/dir", "/opt/bin/shelf"});
}

}  // namespace

TEST_CASE("a program is found as its name says") {
    struct Case {
        const char* words;
        Arguments command;
    };
    const std::vector<Case> cases = {
        {"data.py", {"/usr/bin/python3", "-u", "data.py"}},
        {"tool.py -x", {"/usr/bin/python3", "-u", "tool.py", "-x"}},
        {"--no-python tool.py", {"./tool.py"}},
        {"train", {"./train"}},
        {"true a b", {"/usr/bin/true", "a", "b"}},
        {"bin/app", {"bin/app"}},
        {"--no-python bin/app", {"bin/app"}},
        {"/usr/bin/true", {"/usr/bin/true"}},
        {"python data.py", {"/opt/bin/python", "data.py"}},
        {"-m pkg.train --lr 1", {"/usr/bin/python3", "-u", "-m", "pkg.train", "--lr", "1"}},
        {"-m data.py", {"/usr/bin/python3", "-u", "-m", "data.py"}},
        {"--legacy-launch data.py x",
         {"/usr/bin/python3", "-u", "data.py", "--local-rank=${local_rank}", "x"}},
        {"--legacy-launch -m pkg x",
         {"/usr/bin/python3", "-u", "-m", "pkg", "--local-rank=${local_rank}", "x"}},
        {"--legacy-launch train", {"./train", "--local-rank=${local_rank}"}},
        {"--legacy-launch --use_env data.py x", {"/usr/bin/python3", "-u", "data.py", "x"}},
        {"--legacy-launch --use-env --no-python train x", {"./train", "x"}},
    };
    FakeSurroundings machine;
    furnish(machine);
    for (const Case& it : cases) {
        CAPTURE(it.words);
        const LaunchPlan plan = as_plan(make_plan(words(it.words), machine));
        CHECK(plan.agent.supervisor.command == it.command);
    }
    CHECK(as_plan(make_plan({"-m", "pkg.train"}, machine)).agent.program == "pkg.train");
    const LaunchPlan legacy = as_plan(make_plan({"--legacy-launch", "data.py"}, machine));
    CHECK(legacy.agent.program == "data.py");
    CHECK(as_plan(make_plan({"train", "x"}, machine)).agent.program == "train");
}

TEST_CASE("what is compared with other nodes is the file that is run, and what runs it") {
    struct Case {
        const char* words;
        const char* file;
        const char* python;
    };
    const std::vector<Case> cases = {
        {"data.py", "data.py", "/usr/bin/python3"},
        {"train --lr 1", "./train", ""},
        {"--no-python tool.py", "./tool.py", ""},
        {"python -u data.py x", "data.py", "/opt/bin/python"},
        {"python -m pkg", "", "/opt/bin/python"},
        {"-m notes x", "notes.py", "/usr/bin/python3"},
        {"-m pkg.train", "", "/usr/bin/python3"},
    };
    FakeSurroundings machine;
    furnish(machine);
    for (const Case& it : cases) {
        CAPTURE(it.words);
        const LaunchPlan plan = as_plan(make_plan(words(it.words), machine));
        CHECK(plan.program_file == it.file);
        CHECK(plan.python == it.python);
    }
}

TEST_CASE("--run-path has Python run a file, whatever its name, and wins over the other ways") {
    FakeSurroundings machine;
    furnish(machine);
    for (const char* flags :
         {"--run-path", "--run-path --no-python", "--run-path -m", "--run-path -m --no-python"}) {
        CAPTURE(flags);
        const LaunchPlan plan =
            as_plan(make_plan(words(std::string(flags) + " sub/run.sh a"), machine));
        REQUIRE(plan.agent.supervisor.command.size() == 6);
        CHECK(Arguments(plan.agent.supervisor.command.begin(),
                        plan.agent.supervisor.command.begin() + 3) ==
              Arguments{"/usr/bin/python3", "-u", "-c"});
        CHECK_THAT(plan.agent.supervisor.command[3], Catch::Contains("runpy.run_path(sys.argv[0]"));
        CHECK(plan.agent.supervisor.command[3].find('$') ==
              std::string::npos);  // nothing to substitute
        CHECK(plan.agent.supervisor.command[4] == "sub/run.sh");
        CHECK(plan.agent.program == "sub/run.sh");
    }
    CHECK(as_plan(make_plan({"--run-path", "bin/dir"}, machine)).agent.supervisor.command[4] ==
          "bin/dir");
    CHECK(as_error(make_plan({"--run-path", "nope"}, machine)).exit_code == 127);
}

TEST_CASE("PATH is searched in order, with an empty entry for here and a default without it") {
    FakeSurroundings machine;
    machine.executables.insert({"/opt/bin/job", "/usr/bin/job", "./here", "/bin/basic"});
    const auto path_of = [&machine](const std::string& name) {
        return as_plan(make_plan({name}, machine)).agent.supervisor.command.front();
    };
    CHECK(path_of("job") == "/opt/bin/job");
    machine.variables["PATH"] = "/usr/bin:/opt/bin";
    CHECK(path_of("job") == "/usr/bin/job");
    machine.variables["PATH"] = "/nowhere:";
    CHECK(path_of("here") == "./here");
    machine.variables.erase("PATH");
    CHECK(path_of("basic") == "/bin/basic");
    machine.variables["PATH"] = "";
    CHECK(as_error(make_plan({"job"}, machine)).exit_code == 127);
}

TEST_CASE("a program that is not there or cannot be executed is refused before anything starts") {
    struct Case {
        const char* words;
        int exit_code;
        const char* line;
    };
    const std::vector<Case> cases = {
        {"nope", 127,
         "cannot run nope: no such program here or in PATH; check the name and the working folder"},
        {"./nope", 127, "cannot run ./nope: no such file; check the name and the working folder"},
        {"nope.py", 127, "cannot run nope.py: no such file; check the name and the working folder"},
        {"data", 127, "cannot run data: no such program here or in PATH; did you mean data.py?"},
        {"shelf", 127,
         "cannot run shelf: no such program here or in PATH; check the name and the working "
         "folder"},
        {"--no-python nope", 127,
         "cannot run nope: no such program here or in PATH; check the name and the working folder"},
        {"script", 126,
         "cannot run ./script: it is not executable; chmod +x ./script, or if it is a Python "
         "script: ddprun ... python3 ./script"},
        {"sub/run.sh", 126,
         "cannot run sub/run.sh: it is not executable; chmod +x sub/run.sh, or if it is a Python "
         "script: ddprun ... python3 sub/run.sh"},
        {"readme", 126,
         "cannot run /usr/bin/readme: it is not executable; chmod +x /usr/bin/readme, or if it is "
         "a Python script: ddprun ... python3 /usr/bin/readme"},
        {"--no-python notes.py", 126,
         "cannot run ./notes.py: it is not executable; leave out --no-python to run it with "
         "Python, or chmod +x ./notes.py"},
        {"package", 126,
         "cannot run ./package: it is a folder; name the program in it, or use -m for a Python "
         "package"},
        {"bin/dir", 126,
         "cannot run bin/dir: it is a folder; name the program in it, or use -m for a Python "
         "package"},
        {"package.py", 126,
         "cannot run package.py: it is a folder; name the program in it, or use -m for a Python "
         "package"},
    };
    FakeSurroundings machine;
    furnish(machine);
    for (const Case& it : cases) {
        const UsageError error = as_error(make_plan(words(it.words), machine));
        CHECK(error.line == it.line);
        CHECK(error.exit_code == it.exit_code);
    }
    // The user may have meant a program of a similar name in the same folder.
    machine.texts = {{"/home/user/train.py", ""}, {"/home/user/train.txt", ""}, {"sub/run.py", ""}};
    machine.executables.insert("evaluate");
    machine.texts["/home/user/evaluate"] = "";
    const auto hint = [&machine](const std::string& typed) {
        const std::string line = as_error(make_plan({typed}, machine)).line;
        return line.substr(line.rfind("; ") + 2);
    };
    CHECK(hint("trian.py") == "did you mean train.py?");
    CHECK(hint("trian") == "did you mean train.py?");
    CHECK(hint("sub/rnu.py") == "did you mean sub/run.py?");
    CHECK(hint("evalaute") == "did you mean evaluate?");
    CHECK(hint("tarin.txt") == "check the name and the working folder");
    CHECK(hint("other.py") == "check the name and the working folder");
    CHECK(as_error(make_plan({"--legacy-launch", "--no-python", "train"}, machine)).line ==
          "--no-python with --legacy-launch: a program that is no Python script is not passed "
          "--local-rank; add --use-env, it finds LOCAL_RANK in its environment");
    const UsageError unnamed = as_error(make_plan({""}, machine));
    CHECK(unnamed.line == "cannot run '': the program's name is empty; is a variable unset?");
    CHECK(unnamed.exit_code == 127);
    CHECK(as_error(outcome_of({"-m", "--no-python", "x"})).line ==
          "--module and --no-python contradict each other; leave one out");
}

TEST_CASE("Python is PYTHON_EXEC or the python3 of PATH, never one beside the script by chance") {
    FakeSurroundings machine;
    machine.executables.insert({"./python3", "/opt/bin/python3.12", "/venv/bin/python"});
    machine.files.insert("/venv/README");
    const auto python = [&machine] {
        return as_plan(make_plan({"train.py"}, machine)).agent.supervisor.command[0];
    };
    const auto refusal = [&machine] { return as_error(make_plan({"train.py"}, machine)); };
    CHECK(python() == "/usr/bin/python3");
    machine.variables["PYTHON_EXEC"] = "/venv/bin/python";
    CHECK(python() == "/venv/bin/python");
    machine.variables["PYTHON_EXEC"] = "python3.12";
    CHECK(python() == "/opt/bin/python3.12");
    machine.variables["PYTHON_EXEC"] = "";
    CHECK(python() == "/usr/bin/python3");
    machine.variables["PYTHON_EXEC"] = "/nope";
    CHECK(refusal().line ==
          "cannot run train.py: PYTHON_EXEC=/nope does not exist; set it to a "
          "Python interpreter, or unset it");
    CHECK(refusal().exit_code == 127);
    machine.variables["PYTHON_EXEC"] = "/venv/README";
    CHECK(refusal().line ==
          "cannot run train.py: PYTHON_EXEC=/venv/README is not executable; set "
          "it to a Python interpreter, or unset it");
    CHECK(refusal().exit_code == 126);
    machine.variables.erase("PYTHON_EXEC");
    machine.variables["PATH"] = "/nowhere:";
    CHECK(python() == "./python3");  // PATH itself says "here"
    machine.variables["PATH"] = "/nowhere";
    CHECK(refusal().line ==
          "cannot run train.py: python3 is not in PATH; install it, activate its "
          "environment, or set PYTHON_EXEC=/path/to/python");
    CHECK(refusal().exit_code == 127);
}

TEST_CASE("Python is ddprun's own where it has torch, else the environment's, else that of PATH") {
    FakeSurroundings machine;
    machine.executables.insert(
        {"/env/bin/python3", "/venv/bin/python3", "/conda/bin/python3", "/other/python3"});
    const auto python = [&machine] {
        return as_plan(make_plan({"train.py"}, machine)).agent.supervisor.command[0];
    };
    CHECK(python() == "/usr/bin/python3");
    machine.variables["CONDA_PREFIX"] = "/conda";
    CHECK(python() == "/conda/bin/python3");
    machine.variables["VIRTUAL_ENV"] = "/venv";
    CHECK(python() == "/venv/bin/python3");
    machine.own_place = "/env/bin";
    CHECK(python() == "/venv/bin/python3");
    // The names in lib show where a package's files are; torch itself is a folder.
    const std::string site =
        GENERATE("/env/lib/python3.12/site-packages", "/env/lib64/python3.9/site-packages",
                 "/env/lib/python3/dist-packages");
    machine.texts[site + "/numpy/__init__.py"] = "";
    CHECK(python() == "/venv/bin/python3");
    machine.folders.insert(site + "/torch");
    CHECK(python() == "/env/bin/python3");
    machine.executables.erase("/env/bin/python3");
    CHECK(python() == "/venv/bin/python3");
    machine.executables.insert("/env/bin/python3");
    machine.variables["PYTHON_EXEC"] = "/other/python3";
    CHECK(python() == "/other/python3");
    CHECK(as_plan(make_plan({"--no-python", "true"}, machine)).notes.empty());
}

TEST_CASE("Python is that of the environment that ddprun was started from, unless it is a tool's") {
    FakeSurroundings machine;
    machine.executables.insert({"/env/bin/python3", "/venv/bin/python3", "/conda/bin/python3"});
    const auto plan = [&machine] { return as_plan(make_plan({"train.py"}, machine)); };
    const auto python = [&plan] { return plan().agent.supervisor.command[0]; };
    machine.started_place = "/env/bin";
    CHECK(python() == "/usr/bin/python3");  // a folder with a Python is no environment
    CHECK(plan().python_origin == "PATH");
    const bool is_of_conda = GENERATE(false, true);
    if (is_of_conda) {
        machine.folders.insert("/env/conda-meta");
    } else {
        machine.files.insert("/env/pyvenv.cfg");
    }
    CHECK(python() == "/env/bin/python3");
    CHECK(plan().python_origin == "beside ddprun");
    CHECK(plan().notes ==
          std::vector<std::string>{"Python: /env/bin/python3 (beside ddprun), not /usr/bin/python3 "
                                   "(PATH); PYTHON_EXEC=/path/to/python chooses another"});
    for (const char* receipt : {"/env/pipx_metadata.json", "/env/uv-receipt.toml"}) {
        machine.files.insert(receipt);
        CHECK(python() == "/usr/bin/python3");
        CHECK(plan().notes.empty());
        machine.files.erase(receipt);
    }
    // A link elsewhere is how a tool is put into PATH.
    machine.own_place = "/env/bin";
    machine.started_place = "/usr/local/bin";
    CHECK(python() == "/usr/bin/python3");
    machine.started_place = "/env/bin";
    // A user who has activated another environment has chosen its Python.
    machine.variables["CONDA_PREFIX"] = "/conda";
    CHECK(python() == "/conda/bin/python3");
    CHECK(plan().python_origin == "$CONDA_PREFIX");
    machine.variables["VIRTUAL_ENV"] = "/venv";
    CHECK(python() == "/venv/bin/python3");
    machine.variables["PYTHON_EXEC"] = "/conda/bin/python3";
    CHECK(python() == "/conda/bin/python3");
    CHECK(plan().python_origin == "PYTHON_EXEC");
    CHECK(as_plan(make_plan({"/env/bin/python3", "train.py"}, machine)).python_origin.empty());
}

TEST_CASE("an environment that is not there or empty gives no Python") {
    FakeSurroundings machine;
    machine.variables["VIRTUAL_ENV"] = "";
    machine.variables["CONDA_PREFIX"] = "/removed";
    machine.executables.insert("/bin/python3");  // not that of an empty VIRTUAL_ENV
    const LaunchPlan plan = as_plan(make_plan({"-m", "train"}, machine));
    CHECK(plan.agent.supervisor.command[0] == "/usr/bin/python3");
    CHECK(plan.notes.empty());
}

TEST_CASE("one line says which Python was taken where several could be meant") {
    FakeSurroundings machine;
    machine.executables.insert({"/env/bin/python3", "/venv/bin/python3", "/conda/bin/python3"});
    const auto notes = [&machine] { return as_plan(make_plan({"train.py"}, machine)).notes; };
    CHECK(notes().empty());
    machine.variables["VIRTUAL_ENV"] = "/venv";
    CHECK(notes() == std::vector<std::string>{
                         "Python: /venv/bin/python3 ($VIRTUAL_ENV), not /usr/bin/python3 (PATH); "
                         "PYTHON_EXEC=/path/to/python chooses another"});
    machine.variables["CONDA_PREFIX"] = "/conda";
    machine.own_place = "/env/bin";
    machine.texts["/env/lib/python3.12/site-packages/x"] = "";
    machine.folders.insert("/env/lib/python3.12/site-packages/torch");
    CHECK(notes() == std::vector<std::string>{
                         "Python: /env/bin/python3 (where ddprun is installed), not "
                         "/venv/bin/python3 ($VIRTUAL_ENV), /conda/bin/python3 ($CONDA_PREFIX), "
                         "/usr/bin/python3 (PATH); PYTHON_EXEC=/path/to/python chooses another"});
    machine.started_place = "/conda/bin";  // A folder is named once.
    machine.folders.insert("/conda/conda-meta");
    CHECK(notes().front().find("beside ddprun") == std::string::npos);
    machine.started_place.clear();
    // A user who has set PYTHON_EXEC has chosen, and gets no note.
    machine.variables["PYTHON_EXEC"] = "/conda/bin/python3";
    CHECK(notes().empty());
    machine.variables.erase("PYTHON_EXEC");
    // The usual: ddprun, torch and an active environment are in one place.
    machine.variables["VIRTUAL_ENV"] = "/env";
    machine.variables["PATH"] = "/env/bin:/usr/bin";
    machine.variables.erase("CONDA_PREFIX");
    CHECK(notes().empty());
    machine.variables["VIRTUAL_ENV"] = "/link-to-env";
    machine.executables.insert("/link-to-env/bin/python3");
    machine.same_folders.insert({"/env/bin", "/link-to-env/bin"});
    CHECK(notes().empty());
}

TEST_CASE("a program knows where its own file is, and folders by any of their names") {
    const auto real = real_surroundings();
    const Surroundings& machine = *real;
    const std::string own = machine.own_folder();
    CHECK(machine.is_executable_file(own + "/plan_unit"));
    CHECK(machine.is_same_folder(own, machine.started_folder()));
    CHECK(machine.is_same_folder(own, own + "/../" + own.substr(own.rfind('/') + 1)));
    CHECK_FALSE(machine.is_same_folder(own, own + "/.."));
    CHECK_FALSE(machine.is_same_folder(own, own + "/nothing"));
    const std::string file = own + "/plan_unit";
    CHECK_FALSE(machine.is_same_folder(file, file));
}

TEST_CASE("a script that knows only --local_rank is passed that spelling by --legacy-launch") {
    struct Case {
        const char* text;
        const char* spelling;
    };
    const std::vector<Case> cases = {
        {"parser.add_argument('--local_rank', type=int)", "--local_rank=${local_rank}"},
        {"parser.add_argument('--local-rank', type=int)", "--local-rank=${local_rank}"},
        {"add_argument('--local-rank', '--local_rank')", "--local-rank=${local_rank}"},
        {"add_argument('--local_rank_offset')", "--local-rank=${local_rank}"},
        {"add_argument('--local_rank_offset'); add_argument(\"--local_rank\")",
         "--local_rank=${local_rank}"},
        {"local_rank = args.local_rank", "--local-rank=${local_rank}"},
        {"", "--local-rank=${local_rank}"},
    };
    FakeSurroundings machine;
    furnish(machine);
    for (const Case& it : cases) {
        CAPTURE(it.text);
        machine.texts["data.py"] = it.text;
        for (const char* flags :
             {"--legacy-launch data.py x", "--legacy-launch --run-path data.py"}) {
            const LaunchPlan plan = as_plan(make_plan(words(flags), machine));
            const auto found =
                std::find(plan.agent.supervisor.command.begin(),
                          plan.agent.supervisor.command.end(), std::string(it.spelling));
            CHECK(found != plan.agent.supervisor.command.end());
        }
    }
    // ddprun does not know a module's file, and reads no program in another language.
    machine.texts["data.py"] = cases[0].text;
    machine.texts["train"] = cases[0].text;
    for (const char* flags : {"--legacy-launch -m data.py", "--legacy-launch train"}) {
        const LaunchPlan plan = as_plan(make_plan(words(flags), machine));
        CHECK(std::count(plan.agent.supervisor.command.begin(), plan.agent.supervisor.command.end(),
                         "--local-rank=${local_rank}") == 1);
    }
}

TEST_CASE("a flag of ddprun behind the program gets a warning, unless the script knows it") {
    struct Case {
        const char* words;
        const char* warning;  ///< null: none
    };
    const std::vector<Case> cases = {
        {"data.py --nnodes 2",
         "--nnodes behind data.py goes to that program; if ddprun is to have it, put it before "
         "data.py"},
        {"--nnodes 1 data.py --lr 1 --nproc_per_node=2 --rdzv-id a --nproc_per_node=2",
         "--nproc_per_node, --rdzv-id behind data.py go to that program; if ddprun is to have "
         "them, put them before data.py"},
        {"-m pkg --max-restarts 2",
         "--max-restarts behind pkg goes to that program; if ddprun is to have it, put it before "
         "pkg"},
        {"train --standalone",
         "--standalone behind train goes to that program; if ddprun is to have it, put it before "
         "train"},
        {"data.py --node-rank 1", nullptr},
        {"data.py --node_rank=1", nullptr},
        {"data.py -- --nnodes 2", nullptr},
        {"data.py nnodes --nnodes2 --no-nnodes -t 3 -m", nullptr},
        // Words that programs have for themselves.
        {"data.py --help --help-all --version --log-dir l --role r --store s --insecure --dry-run",
         nullptr},
        {"data.py --tls-key k --grow 2 --watch w --prefix p --fold 3", nullptr},
    };
    FakeSurroundings machine;
    furnish(machine);
    machine.texts["data.py"] = "parser.add_argument('--node_rank', type=int)";
    for (const Case& it : cases) {
        CAPTURE(it.words);
        const LaunchPlan plan = as_plan(make_plan(words(it.words), machine));
        CHECK(plan.warnings == (it.warning == nullptr ? std::vector<std::string>{}
                                                      : std::vector<std::string>{it.warning}));
    }
}

TEST_CASE("signals are names, with or without SIG") {
    using Signals = std::vector<int>;
    CHECK(plan_of("").agent.signals_to_handle == Signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
    CHECK(plan_of("--signals-to-handle SIGUSR1,term,SIGUSR1").agent.signals_to_handle ==
          Signals{SIGUSR1, SIGTERM});
    const LaunchPlan plan = plan_of("--ignore-hup");
    CHECK(plan.ignores_hup);
    CHECK(plan.agent.signals_to_handle == Signals{SIGTERM, SIGINT, SIGQUIT});
    const std::string form =
        "' cannot be handled; choose from SIGTERM,SIGINT,SIGHUP,SIGQUIT,"
        "SIGUSR1,SIGUSR2,SIGALRM,SIGXCPU,SIGPWR";
    for (const std::string name : {"SIGKILL", "SIGSTOP", "SIGCHLD", "9", "SIG", "bogus"}) {
        CHECK(refusal_of("--signals-to-handle SIGTERM," + name) ==
              "--signals-to-handle SIGTERM," + name + ": '" + name + form);
    }
}
