// A safetensors file: the length of a header, the header (JSON: dtype, shape and bytes of each tensor by name), elements in row-major order.
class TensorFile {
    struct Entry {
        std::string dtype;
        std::vector<i64> shape, range;
    };

    std::string path, header;
    std::size_t at = 0;
    std::ifstream file;
    std::map<std::string, Entry> entries;

    [[noreturn]] void damaged(const std::string &why) const { throw InputError(path + ": not a safetensors file: " + why); }

    char peek() {
        while (at < header.size() && std::strchr(" \t\r\n", header[at]) != nullptr) at++;
        if (at >= header.size()) damaged("its header ends early");
        return header[at];
    }

    void expect(char c) {
        if (peek() != c) damaged(std::string("its header lacks `") + c + "`");
        at++;
    }

    // Takes the character if it comes next.
    bool takes(char c) {
        if (peek() != c) return false;
        at++;
        return true;
    }

    std::string string() {
        expect('"');
        std::string out;
        while (at < header.size() && header[at] != '"') {
            if (header[at] == '\\' && ++at < header.size() && std::strchr("\"\\/", header[at]) == nullptr) damaged("its header has an escape in a name");
            if (at < header.size()) out += header[at++];
        }
        expect('"');
        return out;
    }

    std::vector<i64> integers() {
        std::vector<i64> out;
        expect('[');
        while (!takes(']')) {
            if (!out.empty()) expect(',');
            i64 n = 0;
            if (peek() < '0' || peek() > '9') damaged("its header lacks a number");
            while (at < header.size() && header[at] >= '0' && header[at] <= '9') n = (Size(n) * 10 + (header[at++] - '0')).value;
            out.push_back(n);
        }
        return out;
    }

    void read_entry(Entry &entry) {
        expect('{');
        for (bool first = true; !takes('}'); first = false) {
            if (!first) expect(',');
            const std::string key = string();
            expect(':');
            if (key == "dtype")
                entry.dtype = string();
            else if (key == "shape")
                entry.shape = integers();
            else if (key == "data_offsets")
                entry.range = integers();
            else
                string();
        }
    }

  public:
    explicit TensorFile(const std::string &name) : path(name), file(name, std::ios::binary) {
        if (!file) throw MachineError("cannot open " + path);
        file.seekg(0, std::ios::end);
        const i64 bytes = static_cast<i64>(file.tellg());
        unsigned char length[8] = {};
        file.seekg(0);
        file.read(reinterpret_cast<char *>(length), 8);
        std::uint64_t count = 0;
        for (int k = 8; k-- > 0;) count = count << 8 | length[k];
        if (bytes < 8 || count > static_cast<std::uint64_t>(bytes - 8)) damaged("its header is longer than the file");
        header.resize(static_cast<std::size_t>(count));
        file.read(&header[0], static_cast<std::streamsize>(count));
        const i64 begin = 8 + static_cast<i64>(count);
        expect('{');
        for (bool first = true; !takes('}'); first = false) {
            if (!first) expect(',');
            const std::string key = string();
            expect(':');
            Entry entry;
            read_entry(entry);
            if (key == "__metadata__") continue;
            if (entry.range.size() != 2 || entry.range[0] > entry.range[1] || entry.range[1] > bytes - begin) damaged("the bytes of `" + key + "` are outside of it");
            for (i64 &end : entry.range) end += begin;
            entries[key] = entry;
        }
    }

    bool has(const std::string &name) const { return entries.count(name) != 0; }

    std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto &[name, entry] : entries) out.push_back(name);
        return out;
    }

    // Reads a tensor.
    Tensor read(const std::string &name) {
        const auto found = entries.find(name);
        if (found == entries.end()) throw InputError(path + ": it has no tensor `" + name + "`");
        const Entry &entry = found->second;
        for (const DType &dtype : dtypes::ALL) {
            if (entry.dtype != dtype.in_files) continue;
            const Sizes sizes(entry.shape.begin(), entry.shape.end());
            const Tensor out = empty_tensor(dtype, sizes, row_major(sizes));
            const i64 bytes = (elements(sizes) * dtype.bytes).value;
            if (bytes != entry.range[1] - entry.range[0]) damaged("`" + name + "` has other bytes than its shape");
            file.clear();
            file.seekg(entry.range[0]);
            file.read(out.data, bytes);
            if (file.gcount() != bytes) throw MachineError("cannot read " + path);
            return out;
        }
        throw InputError(path + ": `" + name + "` has the dtype " + entry.dtype + ", which is not known here");
    }

    // Reads a tensor of a known dtype and of known sizes, into these strides.
    Tensor read_weight(const char *name, const DType &dtype, const Sizes &sizes, const Sizes &strides) {
        const Tensor t = read(name);
        if (!(t.dtype == dtype) || text(t.sizes) != text(sizes))
            throw InputError(std::string("the weight `") + name + "` is " + t.dtype.name + text(t.sizes) + ", the program wants " + dtype.name + text(sizes));
        if (lies_as(t, strides)) return t;
        const Tensor out = empty_tensor(dtype, sizes, strides);
        copy(out, t);
        return out;
    }
};

// Writes the tensors among values to a safetensors file, under their positions.
inline void write_tensors(const std::string &path, const Values &values) {
    std::string header = "{", bytes;
    for (std::size_t k = 0; k < values.size(); k++) {
        const Tensor *t = std::get_if<Tensor>(&values[k]);
        if (t == nullptr) continue;
        const Tensor plain = empty_tensor(t->dtype, t->sizes, row_major(t->sizes));
        copy(plain, *t);
        const std::size_t begin = bytes.size();
        bytes.append(plain.data, static_cast<std::size_t>(extent(plain.dtype, plain.sizes, plain.strides).value));
        header += (header.size() > 1 ? ",\"" : "\"") + std::to_string(k) + "\":{\"dtype\":\"" + t->dtype.in_files + "\",\"shape\":" + text(t->sizes) +
                  ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(bytes.size()) + "]}";
    }
    header += '}';
    header.append((8 - header.size() % 8) % 8, ' ');
    std::ofstream file(path, std::ios::binary);
    for (int k = 0; k < 8; k++) file.put(static_cast<char>(header.size() >> 8 * k & 255));
    file << header << bytes;
    if (!file.flush()) throw MachineError("cannot write " + path);
}
