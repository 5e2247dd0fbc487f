// A level of an index of a product: its size, and its strides in elements in the left and the right operand.
struct Level {
    Size size, in_a, in_b;
};

// A matrix product or a convolution: sums over `k` for each place of `batch`, `m` and `n`, whose levels stand outermost first.
struct Contraction {
    const char *a, *b;
    Size a_offset, b_offset;
    std::vector<Level> batch, m, n, k;
};

inline i64 places(const std::vector<Level> &levels) {
    Size out = 1;
    for (const Level &l : levels) out = out * l.size;
    return out.value;
}

// Offsets in both operands of all places of an index, in elements.
struct Offsets {
    std::vector<i64> a, b;

    explicit Offsets(const std::vector<Level> &levels) : a{0}, b{0} {
        for (const Level &l : levels) {
            Offsets inner(l, *this);
            a.swap(inner.a), b.swap(inner.b);
        }
    }

  private:
    Offsets(const Level &l, const Offsets &outer) {
        for (std::size_t k = 0; k < outer.a.size(); k++)
            for (i64 i = 0; i < l.size.value; i++) {
                a.push_back(outer.a[k] + i * l.in_a.value);
                b.push_back(outer.b[k] + i * l.in_b.value);
            }
    }
};

// The blocks that a product is computed by, and the offsets of its operands.
template <class Sum>
struct Blocks {
    static constexpr i64 TILE_M = kernels::TILE_M, TILE_N = kernels::Lanes<Sum>::TILE_N;

    i64 batches, rows, columns, terms;
    // Rows, columns and terms of a block: whole tiles, no more than there are.
    i64 block_m, block_n, block_k;
    i64 in_m, in_n, count;
    Offsets batch, m, n, k;

    static i64 tiles(i64 size, i64 tile, i64 most) { return std::min(most, (size + tile - 1) / tile) * tile; }

    explicit Blocks(const Contraction &c)
        : batches(places(c.batch)), rows(places(c.m)), columns(places(c.n)), terms(places(c.k)), block_m(tiles(rows, TILE_M, 12)),
          block_n(tiles(columns, TILE_N, 8)), block_k(std::min<i64>(terms, 384)), in_m(block_m == 0 ? 0 : (rows - 1) / block_m + 1),
          in_n(block_n == 0 ? 0 : (columns - 1) / block_n + 1), count(batches * in_m * in_n), batch(c.batch), m(c.m), n(c.n), k(c.k) {}
};

// Packs terms k0..k1 of the rows m0..m1 of an operand: those of a tile stand next to each other for each term. What is missing of the
// last tile is zero.
template <class Operand, class Sum>
void pack(Sum *to, const typename Operand::Stored *from, i64 tile, const std::vector<i64> &in_m, i64 m0, i64 m1, const std::vector<i64> &in_k, i64 k0, i64 k1) {
    for (i64 m = m0; m < m1; m += tile, to += (k1 - k0) * tile)
        for (i64 i = 0; i < tile; i++) {
            if (m + i >= m1) {
                for (i64 k = 0; k < k1 - k0; k++) to[k * tile + i] = 0;
                continue;
            }
            const auto row = from + in_m[static_cast<std::size_t>(m + i)];
            const i64 *const offsets = in_k.data() + k0;
            for (i64 k = 0; k < k1 - k0; k++) to[k * tile + i] = Operand::template load<Sum>(row[offsets[k]]);
        }
}

// Computes a product by blocks and hands the sums to the epilogue: packs rows of `a` and columns of `b`, then multiplies tiles of
// TILE_M x TILE_N in registers. Plain, and several times slower than a tuned library.
template <class A, class B, class Sum>
void contract(Team &team, const Contraction &c, Epilogue epilogue, const std::vector<char *> &buffers, const Sizes &sizes) {
    if (places(c.batch) <= 0 || places(c.m) <= 0 || places(c.n) <= 0) return;
    const Blocks<Sum> by(c);
    constexpr i64 TILE_M = Blocks<Sum>::TILE_M, TILE_N = Blocks<Sum>::TILE_N;
    const std::vector<i64> integers = numbers(sizes);
    const auto first_a = reinterpret_cast<const typename A::Stored *>(c.a) + c.a_offset.value;
    const auto first_b = reinterpret_cast<const typename B::Stored *>(c.b) + c.b_offset.value;
    const auto block = [&](i64 number, Sum *sums) {
        const i64 batch = number / by.in_n / by.in_m, m0 = number / by.in_n % by.in_m * by.block_m, n0 = number % by.in_n * by.block_n;
        const i64 m1 = std::min(m0 + by.block_m, by.rows), n1 = std::min(n0 + by.block_n, by.columns);
        Sum *const left = sums + by.block_m * by.block_n, *const right = left + by.block_m * by.block_k;
        std::fill(sums, left, Sum(0));
        for (i64 k0 = 0; k0 < by.terms; k0 += by.block_k) {
            const i64 k1 = std::min(k0 + by.block_k, by.terms);
            pack<A>(left, first_a + by.batch.a[static_cast<std::size_t>(batch)], TILE_M, by.m.a, m0, m1, by.k.a, k0, k1);
            pack<B>(right, first_b + by.batch.b[static_cast<std::size_t>(batch)], TILE_N, by.n.b, n0, n1, by.k.b, k0, k1);
            for (i64 n = 0; n < n1 - n0; n += TILE_N)
                for (i64 m = 0; m < m1 - m0; m += TILE_M)
                    kernels::multiply(left + m * (k1 - k0), right + n * (k1 - k0), k1 - k0, sums + m * by.block_n + n, by.block_n);
        }
        epilogue(buffers.data(), integers.data(), sums, by.block_n, batch, m0, m1, n0, n1);
    };
    const double cost = static_cast<double>(by.block_m * by.block_n) * static_cast<double>(by.terms) * static_cast<double>(by.count);
    // Parts of several blocks, which share memory for the sums and both packed operands.
    const i64 parts = cost <= 8 * SERIAL_COST ? 1 : std::min(by.count, 4 * team.size());
    team.run(parts, [&](i64 part) {
        const std::shared_ptr<char> memory = allocate((Size(by.block_m) * by.block_n + (Size(by.block_m) + by.block_n) * by.block_k) * i64(sizeof(Sum)));
        for (i64 k = part * by.count / parts; k < (part + 1) * by.count / parts; k++) block(k, reinterpret_cast<Sum *>(memory.get()));
    });
}
