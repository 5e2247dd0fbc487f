// Returns the inputs that a file has, by name or by position.
inline Values read_inputs(const std::string &path) {
    TensorFile file(path);
    Values out;
    std::size_t found = 0;
    for (std::size_t k = 0; k < INPUTS.size(); k++) {
        const Input &input = INPUTS[k];
        const std::string position = std::to_string(k), name = file.has(input.name) ? input.name : position;
        found += file.has(name);
        if (input.kind == Kind::ignored) {
            out.push_back({});
            continue;
        }
        const Tensor t = file.read(name);
        if (input.kind == Kind::tensor) {
            out.push_back(t);
            continue;
        }
        if (!(t.dtype == dtypes::I64) || elements(t.sizes).value != 1) throw InputError(std::string("input `") + input.name + "` must be an int64 scalar");
        i64 n;
        std::memcpy(&n, t.data, sizeof n);
        out.push_back(n);
    }
    if (found != file.names().size()) throw InputError(path + ": a tensor in it belongs to no input");
    return out;
}

struct Options {
    std::string weights, inputs, output;
    std::map<std::string, i64> sizes;
    i64 place = default_place(), calls = -1;
};

inline i64 integer(const std::string &text) {
    std::size_t used = 0;
    i64 n = 0;
    try {
        n = std::stoll(text, &used);
    } catch (const std::exception &) {
    }
    if (used == 0 || used != text.size()) throw InputError("`" + text + "` is no integer");
    return n;
}

inline Options options(int count, char **words) {
    Options out;
    const std::string program = words[0];
    const std::size_t slash = program.find_last_of('/');
    out.weights = (slash == std::string::npos ? "" : program.substr(0, slash + 1)) + WEIGHTS;
    for (int k = 1; k < count; k += 2) {
        const std::string word = words[k];
        if (k + 1 >= count || (word != "--weights" && word != "--inputs" && word != "--output" && word != PLACE && word != "--size" && word != "--calls"))
            throw InputError("usage: " + program +
                             " [--inputs FILE.safetensors] [--output FILE.safetensors] [--weights FILE.safetensors] [" + PLACE + " N] [--calls N] [--size NAME=N]...");
        const std::string value = words[k + 1];
        const std::size_t equal = value.find('=');
        if (word == "--weights") out.weights = value;
        if (word == "--inputs") out.inputs = value;
        if (word == "--output") out.output = value;
        if (word == PLACE) out.place = integer(value);
        if (word == "--calls") out.calls = integer(value);
        if (word == "--size") {
            if (equal == std::string::npos) throw InputError("--size wants NAME=N, got `" + value + "`");
            out.sizes[value.substr(0, equal)] = integer(value.substr(equal + 1));
        }
    }
    expect_place(out.place);
    return out;
}

// Calls the model, prints its outputs and the median time of so many further calls; by default as many as half a second takes.
int main(int count, char **words) {
    try {
        const Options o = options(count, words);
        Model model(o.weights, o.place);
        const Values given = o.inputs.empty() ? drawn_inputs(o.sizes) : read_inputs(o.inputs);
        const Values outputs = model.call(given);
        for (std::size_t k = 0; k < outputs.size(); k++) {
            const Tensor *t = std::get_if<Tensor>(&outputs[k]);
            const std::string layout = t == nullptr ? shown(outputs[k]) : std::string(t->dtype.name) + " " + text(t->sizes) + " strides " + text(t->strides);
            std::printf("output %zu: %s\n", k, layout.c_str());
        }
        if (!o.output.empty()) write_tensors(o.output, fetched(outputs));
        const Values inputs = placed(given);
        std::vector<double> times;
        const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
        const double first = now();
        const std::size_t least = o.calls < 0 ? 10 : static_cast<std::size_t>(o.calls), most = o.calls < 0 ? 1000 : least;
        while (times.size() < least || (now() - first < 0.5 && times.size() < most)) {
            const double begin = now();
            model.call(inputs);
            finish();
            times.push_back(now() - begin);
        }
        std::sort(times.begin(), times.end());
        if (!times.empty()) std::printf("%.1f us a call\n", times[times.size() / 2] * 1e6);
    } catch (const InputError &e) {
        std::fprintf(stderr, "error: %s\n", e.what());
        return 2;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "error: %s\n", e.what());
        return 3;
    }
    return 0;
}
