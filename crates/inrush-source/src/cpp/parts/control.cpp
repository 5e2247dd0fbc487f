// Control flow, and functions whose data decide sizes.

// Returns the tensor that is an input of which only views are read.
inline const Tensor &expect_some_tensor(const char *name, const Value &value) {
    const Tensor *t = std::get_if<Tensor>(&value);
    if (t == nullptr) throw InputError(std::string("input `") + name + "` must be a tensor, got " + shown(value));
    return *t;
}

// Returns the truth of a bool of one element, or of a number.
inline bool truth(const Value &value) {
    if (const bool *b = std::get_if<bool>(&value)) return *b;
    if (const i64 *n = std::get_if<i64>(&value)) return *n != 0;
    const Tensor *t = std::get_if<Tensor>(&value);
    if (t == nullptr || !(t->dtype == dtypes::BOOL) || elements(t->sizes).value != 1) throw InputError("a condition is no bool of one element: " + shown(value));
    return *on_host(*t).data != 0;
}

// Returns results of control flow in memory of their own: what shares it with something given, or with an earlier result, is copied.
inline Values owned(Values results, const Values &given) {
    std::vector<const char *> taken;
    for (const Value &v : given)
        if (const Tensor *t = std::get_if<Tensor>(&v)) taken.push_back(t->memory.get());
    for (Value &v : results) {
        Tensor *t = std::get_if<Tensor>(&v);
        if (t == nullptr) continue;
        // Memory of the caller's has no owner.
        if (!t->memory || std::find(taken.begin(), taken.end(), t->memory.get()) != taken.end()) *t = clone(*t);
        taken.push_back(t->memory.get());
    }
    return results;
}

// Returns a tensor with the strides that the program says: a branch may give others.
inline Tensor conformed(const Tensor &t, const Sizes &sizes, const Sizes &strides) {
    if (text(t.sizes) != text(sizes) || lies_as(t, strides)) return t;
    const Tensor out = new_tensor(t.dtype, sizes, strides);
    assign(out, t);
    return out;
}

// Returns a slice along dimension 0.
inline Tensor slice(const Tensor &t, i64 index) {
    const Sizes sizes(t.sizes.begin() + 1, t.sizes.end()), strides(t.strides.begin() + 1, t.strides.end());
    return view(t, t.dtype, t.strides[0] * index, sizes, strides);
}

// Returns the number of slices along dimension 0, of which all tensors have as many.
inline i64 slices(const Values &sliced, const Values &stacked) {
    const auto length = [](const Value &v) {
        const Tensor &t = std::get<Tensor>(v);
        if (t.sizes.empty()) throw InputError("a scan over a tensor without dimensions");
        return t.sizes[0].value;
    };
    const i64 count = length(sliced.at(0));
    for (const Value &v : sliced)
        if (length(v) != count) throw InputError("a scan over tensors of different lengths");
    for (const Value &v : stacked)
        if (length(v) != count) throw InputError("a scan of " + std::to_string(count) + " turns stacks " + shown(v));
    return count;
}

// Copies the result of a turn to its place.
inline void put(const Value &result, const Tensor &place) {
    const Tensor *t = std::get_if<Tensor>(&result);
    if (t == nullptr || !(t->dtype == place.dtype) || text(t->sizes) != text(place.sizes))
        throw InputError("a turn gives " + shown(result) + ", the scan stacks slices of sizes " + text(place.sizes));
    assign(place, *t);
}

// Returns the element of a tensor of one element.
inline Value item(const Tensor &given) {
    const Tensor t = on_host(given);
    if (elements(t.sizes).value != 1) throw InputError("a tensor of sizes " + text(t.sizes) + " is no single number");
    const auto read = [&](auto zero) {
        std::memcpy(&zero, t.data, sizeof zero);
        return zero;
    };
    if (t.dtype == dtypes::BOOL) return read(char()) != 0;
    if (t.dtype == dtypes::F64) return read(double());
    if (t.dtype == dtypes::F32) return static_cast<double>(read(float()));
    if (t.dtype == dtypes::I64) return read(i64());
    if (t.dtype == dtypes::I32) return static_cast<i64>(read(std::int32_t()));
    if (t.dtype == dtypes::I16) return static_cast<i64>(read(std::int16_t()));
    if (t.dtype == dtypes::I8) return static_cast<i64>(read(std::int8_t()));
    if (t.dtype == dtypes::U8) return static_cast<i64>(read(std::uint8_t()));
    throw InputError(std::string("a number of ") + t.dtype.name + " is not read from a tensor");
}

// Returns true if an element is zero. Floats of either sign are; NaN is not.
inline bool is_zero(const DType &dtype, const char *element) {
    for (i64 k = 0; k < dtype.bytes; k++) {
        const bool is_last = k + 1 == dtype.bytes;
        const int mask = is_last && dtype.is_float ? 0x7f : 0xff;
        if ((element[k] & mask) != 0) return false;
    }
    return true;
}

// Returns the coordinates of the elements that are not zero, one dimension after the other in memory.
inline Tensor nonzero(const Tensor &given) {
    const Tensor t = on_host(given);
    std::vector<std::vector<i64>> found;
    std::vector<i64> place(t.sizes.size(), 0);
    const i64 count = elements(t.sizes).value;
    for (i64 k = 0; k < count; k++) {
        const char *element = t.data;
        for (std::size_t d = 0; d < place.size(); d++) element += place[d] * t.strides[d].value * t.dtype.bytes;
        if (!is_zero(t.dtype, element)) found.push_back(place);
        for (std::size_t d = place.size(); d-- > 0;) {
            if (++place[d] < t.sizes[d].value) break;
            place[d] = 0;
        }
    }
    const i64 rows = static_cast<i64>(found.size());
    const Tensor out = empty_tensor(dtypes::I64, {rows, static_cast<i64>(place.size())}, {1, rows});
    i64 *const into = reinterpret_cast<i64 *>(out.data);
    for (i64 k = 0; k < rows; k++)
        for (std::size_t d = 0; d < place.size(); d++) into[static_cast<i64>(d) * rows + k] = found[static_cast<std::size_t>(k)][d];
    return on_device(out);
}
