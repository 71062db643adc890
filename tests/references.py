"""The papers' equations as slow loops over plain numbers, to hold the library against. Nothing of it is used here."""

import math

import numpy as np

SMALLEST_SPREAD = 1e-12


def squared_distance(a, b):
    return sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True))


def normalised(vector):
    length = math.sqrt(sum(float(v) ** 2 for v in vector))
    return [float(v) / length for v in vector]


def mean_of(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def one_hot(ids, classes):
    return [[1.0 if k == y else 0.0 for k in range(classes)] for y in ids]


class SlowBDR:
    """BDR, class by class and sample by sample."""

    def __init__(self, labels, features, classes, m, m_prime, beta, tau, formula):
        self.classes, self.m_prime, self.beta, self.tau, self.formula = classes, m_prime, beta, tau, formula
        mine = [[f for f, y in zip(features, labels, strict=True) if y == k] for k in range(classes)]
        self.count = [len(rows) for rows in mine]
        self.mean = [mean_of(rows) for rows in mine]
        self.spread = [
            sum(squared_distance(f, mean) for f in rows) / len(rows) for rows, mean in zip(mine, self.mean, strict=True)
        ]
        several = [spread for spread, n in zip(self.spread, self.count, strict=True) if n > 1]
        typical = sum(several) / len(several) if several else 0.0
        self.spread = [spread if n > 1 else typical for spread, n in zip(self.spread, self.count, strict=True)]
        self.initial = self.pi(m)
        self.log_prior = [self.log(p) for p in self.initial]

    def pi(self, share):
        inverse = [1 / max(s, SMALLEST_SPREAD) for s in self.spread]
        psi = [n / sum(self.count) for n in self.count]
        omega = [v / sum(inverse) for v in inverse]
        return [share * psi[k] + (1 - share) * omega[k] for k in range(self.classes)]

    def log(self, p):
        return math.log(p**self.tau + 1e-12) if self.formula == "released" else self.tau * math.log(p)

    def step(self, features, weights):
        """One batch; weights (B, K) say how much of each sample is of which class."""
        first_seen = []  # classes, in the order in which they appear in the batch
        for row in weights:
            first_seen += [k for k in range(self.classes) if row[k] > 0 and k not in first_seen]
        in_batch = [sum(row[k] for row in weights) for k in range(self.classes)]
        for k in first_seen:
            w1, w2 = self.blend(k, in_batch)
            for d in range(len(features[0])):
                total = sum(row[k] * float(f[d]) for row, f in zip(weights, features, strict=True))
                self.mean[k][d] = w1 * self.mean[k][d] + w2 * total / in_batch[k]
        for k in first_seen:
            if in_batch[k] < 1.5 and self.formula != "anchored":
                continue
            w1, w2 = self.blend(first_seen[-1] if self.formula == "released" else k, in_batch)
            far = sum(row[k] * squared_distance(f, self.mean[k]) for row, f in zip(weights, features, strict=True))
            self.spread[k] = w1 * self.spread[k] + w2 * far / in_batch[k]
        self.average()

    def blend(self, k, in_batch):
        whole = self.count[k] + in_batch[k]
        return self.count[k] / whole, in_batch[k] / whole

    def average(self):
        now, beta = self.pi(self.m_prime), self.beta
        if self.formula == "anchored":
            self.log_prior = [self.log(beta * a + (1 - beta) * b) for a, b in zip(self.initial, now, strict=True)]
        else:
            self.log_prior = [beta * a + (1 - beta) * self.log(b) for a, b in zip(self.log_prior, now, strict=True)]

    @property
    def offset(self):
        return [p + self.tau * math.log(self.classes) for p in self.log_prior]


def slow_decorrelation(features, y):
    """CwD's loss, one class after the other; torch tensors, so that gradients can be compared as well."""
    total, samples = 0.0 * features.sum(), 0
    unit = [f / f.square().sum().sqrt() for f in features]
    for k in sorted(set(y.tolist())):
        mine = [u for u, label in zip(unit, y.tolist(), strict=True) if label == k]
        if len(mine) < 2:
            continue
        mean = sum(mine) / len(mine)
        variance = sum((u - mean) ** 2 for u in mine) / (len(mine) - 1)
        standard = [(u - mean) / (variance + 1e-8).sqrt() for u in mine]
        gram = sum(u[:, None] * u[None, :] for u in standard)
        dim = len(gram)
        total = total + sum(gram[i, j] ** 2 for i in range(dim) for j in range(dim) if i != j) / (dim * (dim - 1))
        samples += len(mine)
    return total / max(samples, 1)


def slow_cross_entropy(logits, y):
    losses = []
    for row, label in zip(logits, y, strict=True):
        losses.append(math.log(sum(math.exp(float(z)) for z in row)) - float(row[label]))
    return sum(losses) / len(losses)


def cosine(a, b):
    return sum(p * q for p, q in zip(normalised(a), normalised(b), strict=True))


def slow_margin_ranking(cosines, y, old, negatives=2, margin=0.5):
    """UCIR's third term: the mean over (old samples x hardest new classes)."""
    losses = []
    for row, label in zip(cosines, y, strict=True):
        if label >= old:
            continue
        hardest = sorted((float(s) for s in row[old:]), reverse=True)[:negatives]
        losses += [max(0.0, margin - float(row[label]) + s) for s in hardest]
    return sum(losses) / len(losses) if losses else 0.0


def slow_herd_distance(features, quota):
    """Greedy: the unused sample that brings the mean of the chosen nearest to the class mean."""
    features = [normalised(f) for f in features]
    mu, chosen = mean_of(features), []
    while len(chosen) < min(quota, len(features)):
        free = [i for i in range(len(features)) if i not in chosen]
        distance = {i: squared_distance(mu, mean_of([features[j] for j in [*chosen, i]])) for i in free}
        chosen.append(min(free, key=distance.__getitem__))
    return chosen


def slow_herd_dot(features, quota, rounds=1000):
    """iCaRL: the best aligned of all samples; a sample picked again costs a round and is not listed twice."""
    features = [normalised(f) for f in features]
    mu, chosen = mean_of(features), []
    w = list(mu)
    for _ in range(rounds):
        if len(chosen) >= min(quota, len(features)):
            break
        score = [sum(a * b for a, b in zip(w, f, strict=True)) for f in features]
        pick = score.index(max(score))
        if pick not in chosen:
            chosen.append(pick)
        w = [a + m - f for a, m, f in zip(w, mu, features[pick], strict=True)]
    return chosen


def slow_augment(image, pad, top, left, mirror, bright, mean, std, added=0.0, contrast=1.0, angle=0.0):
    """(H, W, C) bytes to (C, H, W) numbers: tone, pad with zeros, crop, mirror, brighten, turn; only then normalise."""
    height, width, channels = image.shape
    image = image / 255
    for c in range(channels):
        middle = image[:, :, c].sum() / (height * width)
        image[:, :, c] = np.clip(middle + contrast * (image[:, :, c] - middle) + added, 0.0, 1.0)
    padded = np.zeros((height + 2 * pad, width + 2 * pad, channels))
    padded[pad : pad + height, pad : pad + width] = image
    crop = padded[top : top + height, left : left + width]
    crop = crop[:, ::-1] if mirror else crop
    crop = slow_turn(np.minimum(crop * bright, 1.0), angle)
    return np.stack([(crop[:, :, c] - mean[c]) / std[c] for c in range(channels)])


def slow_turn(image, degrees):
    """(H, W, C) turned pixel by pixel: each looks where it came from, and stays black if that is outside."""
    height, width, _ = image.shape
    turned, (sine, cosine) = np.zeros_like(image), (f(math.radians(degrees)) for f in (math.sin, math.cos))
    for i in range(height):
        for j in range(width):
            down, right = i - (height - 1) / 2, j - (width - 1) / 2
            y = math.floor(cosine * down + sine * right + height / 2)
            x = math.floor(cosine * right - sine * down + width / 2)
            if 0 <= y < height and 0 <= x < width:
                turned[i, j] = image[y, x]
    return turned
