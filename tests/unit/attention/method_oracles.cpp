#include "tests/unit/attention/method_oracles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace triphase::oracle {
namespace {

using Row = std::vector<double>;

double dot(const Row& a, const Row& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t floor_of(double value) { return static_cast<std::int64_t>(std::floor(value + 1e-9)); }

// The `count` best of `candidates` by score, ties to the smallest; ascending.
Tokens best(Tokens candidates, std::int64_t count,
            const std::function<double(std::int32_t)>& score) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
  candidates.resize(std::min(candidates.size(), z(std::max<std::int64_t>(0, count))));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

Tokens join(const Tokens& a, const Tokens& b) {
  Tokens all = a;
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<Step> steps(const Sequence& s, const std::function<Step(std::int64_t)>& step) {
  std::vector<Step> result;
  for (std::int64_t at = s.prompt; at < static_cast<std::int64_t>(s.q.size()); ++at) {
    result.push_back(step(at));
  }
  return result;
}

}  // namespace

Row Sequence::weights(std::int64_t head, std::int64_t at, const Tokens& tokens) const {
  Row result;
  for (const std::int32_t t : tokens) {
    result.push_back(scale * dot(q[z(at)][z(head)], k[z(t)][z(head / group())]));
  }
  const double top = *std::max_element(result.begin(), result.end());
  double total = 0;
  for (double& x : result) total += x = std::exp(x - top);
  for (double& x : result) x /= total;
  return result;
}

Tokens range(std::int64_t begin, std::int64_t end) {
  Tokens result(z(std::max<std::int64_t>(0, end - begin)));
  std::iota(result.begin(), result.end(), static_cast<std::int32_t>(begin));
  return result;
}

Step attend(const Sequence& s, std::int64_t at, std::vector<Tokens> lists) {
  Step step{std::move(lists), {}};
  for (std::int64_t head = 0; head < s.heads; ++head) {
    const Tokens& list =
        step.lists[z(head / (s.heads / static_cast<std::int64_t>(step.lists.size())))];
    const Row p = s.weights(head, at, list);
    Row out(z(s.dim), 0.0);
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (std::size_t c = 0; c < out.size(); ++c) {
        out[c] += p[i] * s.v[z(list[i])][z(head / s.group())][c];
      }
    }
    step.out.push_back(out);
  }
  return step;
}

std::vector<Step> local(const Sequence& s, double keep) {
  return steps(s, [&](std::int64_t at) {
    const std::int64_t w = std::max<std::int64_t>(1, floor_of(keep * static_cast<double>(at + 1)));
    return attend(s, at, {range(at + 1 - w, at + 1)});
  });
}

std::vector<Step> lm_infinite(const Sequence& s, std::int64_t sinks, std::int64_t k) {
  return steps(s, [&](std::int64_t at) {
    if (at + 1 <= k) return attend(s, at, {range(0, at + 1)});
    return attend(s, at, {join(range(0, sinks), range(at + 1 - (k - sinks), at + 1))});
  });
}

std::vector<Step> strided(const Sequence& s, double keep, bool local) {
  return steps(s, [&](std::int64_t at) {
    const std::int64_t n = at + 1;
    const auto tokens = [&](std::int64_t p) {
      Tokens list;
      for (std::int32_t t = 0; t < n; ++t) {
        if (t % p == 0 || t >= n - (local ? p : 1)) list.push_back(t);
      }
      return list;
    };
    const std::int64_t budget = std::max<std::int64_t>(1, floor_of(keep * static_cast<double>(n)));
    std::int64_t p = 1;
    while (static_cast<std::int64_t>(tokens(p).size()) > budget) ++p;
    return attend(s, at, {tokens(p)});
  });
}

// ALISA, Algorithm 1; rows before the first decode step are dense.
std::vector<Step> swa(const Sequence& s, double r, bool paper_split) {
  std::vector<Row> rows;  // by position: weights summed over heads, by token
  for (std::int64_t at = 0; at < s.prompt; ++at) {
    Row row(s.q.size(), 0.0);
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const Row p = s.weights(head, at, range(0, at + 1));
      for (std::size_t t = 0; t < p.size(); ++t) row[t] += p[t];
    }
    rows.push_back(row);
  }
  return steps(s, [&](std::int64_t at) {
    const double n = static_cast<double>(at + 1);
    const std::int64_t k = floor_of(n * r / 2);
    const std::int64_t local_count = std::max<std::int64_t>(1, k);
    const auto score = [&](std::int32_t t) {
      double sum = 0;
      const auto first = std::max<std::int64_t>(0, at - std::max<std::int64_t>(k, 1));
      for (std::int64_t row = first; row < at; ++row) sum += rows[z(row)][z(t)];
      return sum;
    };
    const std::int64_t others = paper_split ? k : floor_of(n * r) - local_count;
    const Tokens chosen = best(range(0, at + 1 - local_count), others, score);
    const Tokens list = join(chosen, range(at + 1 - local_count, at + 1));
    Row row(s.q.size(), 0.0);
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const Row p = s.weights(head, at, list);
      for (std::size_t i = 0; i < list.size(); ++i) row[z(list[i])] += p[i];
    }
    rows.push_back(row);
    return attend(s, at, {list});
  });
}

std::vector<Step> h2o(const Sequence& s, std::int64_t k, double local_share) {
  std::vector<Row> sums(z(s.kv_heads), Row(s.q.size(), 0.0));
  std::vector<Tokens> kept(z(s.kv_heads), range(0, s.prompt));
  const auto add = [&](std::int64_t at, std::int64_t kv_head, const Tokens& list) {
    for (std::int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
      const Row p = s.weights(head, at, list);
      for (std::size_t i = 0; i < list.size(); ++i) {
        sums[z(kv_head)][z(list[i])] += p[i] / static_cast<double>(s.group());
      }
    }
  };
  for (std::int64_t at = 0; at < s.prompt; ++at) {
    for (std::int64_t h = 0; h < s.kv_heads; ++h) add(at, h, range(0, at + 1));
  }
  return steps(s, [&](std::int64_t at) {
    std::vector<Tokens> lists;
    for (std::int64_t h = 0; h < s.kv_heads; ++h) {
      kept[z(h)].push_back(static_cast<std::int32_t>(at));
      const std::int64_t recent = floor_of(static_cast<double>(k) * local_share) + 1;
      Tokens forced;
      Tokens others;
      for (const std::int32_t t : kept[z(h)]) (t > at - recent ? forced : others).push_back(t);
      const Tokens chosen = best(others, k + 1 - static_cast<std::int64_t>(forced.size()),
                                 [&](std::int32_t t) { return sums[z(h)][z(t)]; });
      kept[z(h)] = join(chosen, forced);
      lists.push_back(kept[z(h)]);
      add(at, h, kept[z(h)]);
    }
    return attend(s, at, lists);
  });
}

// SparQ, Algorithm 1 with the temperature of eq. 9 and appendix B's group sums.
std::vector<Step> sparq(const Sequence& s, std::int64_t rank, std::int64_t k, double local_share,
                        bool reallocate) {
  return steps(s, [&](std::int64_t at) {
    std::vector<Tokens> lists;
    std::vector<std::vector<Row>> approximate;  // [kv_head][head of the group][token]
    for (std::int64_t h = 0; h < s.kv_heads; ++h) {
      const Tokens channels = best(range(0, s.dim), rank, [&](std::int32_t c) {
        double sum = 0;
        for (std::int64_t i = h * s.group(); i < (h + 1) * s.group(); ++i) {
          sum += std::abs(s.q[z(at)][z(i)][z(c)]);
        }
        return sum;
      });
      std::vector<Row> rows;
      for (std::int64_t i = h * s.group(); i < (h + 1) * s.group(); ++i) {
        const Row& q = s.q[z(at)][z(i)];
        double all = 0;
        double part = 0;
        for (const double x : q) all += std::abs(x);
        for (const std::int32_t c : channels) part += std::abs(q[z(c)]);
        const double tau = std::sqrt(part / all) / s.scale;
        Row row;
        for (std::int64_t t = 0; t <= at; ++t) {
          double sum = 0;
          for (const std::int32_t c : channels) sum += q[z(c)] * s.k[z(t)][z(h)][z(c)];
          row.push_back(std::exp(sum / tau));
        }
        const double total = std::accumulate(row.begin(), row.end(), 0.0);
        for (double& x : row) x /= total;
        rows.push_back(row);
      }
      const std::int64_t recent = floor_of(static_cast<double>(k) * local_share) + 1;
      const Tokens forced = range(std::max<std::int64_t>(0, at + 1 - recent), at + 1);
      const Tokens chosen = best(range(0, at + 1 - recent), k + 1 - recent, [&](std::int32_t t) {
        double sum = 0;
        for (const Row& row : rows) sum += row[z(t)];
        return sum;
      });
      lists.push_back(join(chosen, forced));
      approximate.push_back(rows);
    }
    Step step = attend(s, at, lists);
    for (std::int64_t i = 0; reallocate && i < s.heads; ++i) {
      const std::int64_t h = i / s.group();
      double alpha = 0;
      for (const std::int32_t t : step.lists[z(h)])
        alpha += approximate[z(h)][z(i % s.group())][z(t)];
      for (std::int64_t c = 0; c < s.dim; ++c) {
        double mean = 0;
        for (std::int64_t t = 0; t <= at; ++t) mean += s.v[z(t)][z(h)][z(c)];
        mean /= static_cast<double>(at + 1);
        step.out[z(i)][z(c)] = alpha * step.out[z(i)][z(c)] + (1 - alpha) * mean;
      }
    }
    return step;
  });
}

std::vector<Step> topk(const Sequence& s, std::int64_t k) {
  return steps(s, [&](std::int64_t at) {
    std::vector<Tokens> lists;
    for (std::int64_t first = 0; first < s.heads; first += s.group()) {
      Row sums(z(at + 1), 0.0);
      for (std::int64_t i = first; i < first + s.group(); ++i) {
        const Row p = s.weights(i, at, range(0, at + 1));
        for (std::size_t t = 0; t < p.size(); ++t) sums[t] += p[t];
      }
      lists.push_back(join(best(range(0, at), k, [&](std::int32_t t) { return sums[z(t)]; }),
                           range(at, at + 1)));
    }
    Step step = attend(s, at, lists);
    for (std::int64_t i = 0; i < s.heads; ++i) {
      const Row p = s.weights(i, at, range(0, at + 1));
      double mass = 0;
      for (const std::int32_t t : step.lists[z(i / s.group())]) mass += p[z(t)];
      for (double& x : step.out[z(i)]) x *= mass;
    }
    return step;
  });
}

std::vector<Step> quest(const Sequence& s, std::int64_t pages, std::int64_t page) {
  return steps(s, [&](std::int64_t at) {
    const std::int64_t last = at / page;
    std::vector<Tokens> lists;
    for (std::int64_t first = 0; first < s.heads; first += s.group()) {
      const std::int64_t h = first / s.group();
      const Tokens others = best(range(0, last), pages - 1, [&](std::int32_t p) {
        double largest = -1e300;
        for (std::int64_t i = first; i < first + s.group(); ++i) {
          double sum = 0;
          for (std::int64_t c = 0; c < s.dim; ++c) {
            double most = -1e300;
            for (std::int64_t t = p * page; t < std::min((p + 1) * page, at + 1); ++t) {
              most = std::max(most, s.q[z(at)][z(i)][z(c)] * s.k[z(t)][z(h)][z(c)]);
            }
            sum += most;
          }
          largest = std::max(largest, sum);
        }
        return largest;
      });
      Tokens list;
      for (const std::int32_t p : join(others, range(last, last + 1))) {
        list = join(list, range(p * page, std::min((p + 1) * page, at + 1)));
      }
      lists.push_back(list);
    }
    return attend(s, at, lists);
  });
}

std::vector<Step> random(const Sequence& s, double keep) {
  // One step of Vigna's splitmix64.c, with the state that it has before the step.
  const auto next = [](std::uint64_t state) {
    std::uint64_t x = state + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  return steps(s, [&](std::int64_t at) {
    const std::int64_t budget =
        std::max<std::int64_t>(1, floor_of(keep * static_cast<double>(at + 1)));
    Tokens list;
    for (std::int32_t t = 0; t < at; ++t) {
      const double u = static_cast<double>(
          next((static_cast<std::uint64_t>(at + 1) << 32) + static_cast<std::uint64_t>(t)) >> 32);
      const auto missing = static_cast<double>(budget - 1 - static_cast<std::int64_t>(list.size()));
      if (std::ldexp(u, -32) * static_cast<double>(at - t) < missing) list.push_back(t);
    }
    list.push_back(static_cast<std::int32_t>(at));
    return attend(s, at, {list});
  });
}

}  // namespace triphase::oracle
