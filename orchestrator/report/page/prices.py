"""What a million tokens cost, input and output apart."""

from dataclasses import dataclass

from orchestrator.analysis.points import StoredPoint

RATIO = 4.0  # how many input tokens an output token costs, until somebody moves the page's slider


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """USD per million tokens.

    An output token is priced as ``ratio`` times an input token, and both prices together pay for
    the hour: ``input = usd_per_hour / (3600 (tokens in/s + ratio tokens out/s))``. ``input`` and
    ``output`` are None where prompts were not counted. ``output_alone``: if input were free, the
    convention that most tools use.
    """

    input: float | None
    output: float | None
    output_alone: float


def token_price(point: StoredPoint, ratio: float = RATIO) -> TokenPrice | None:
    """At the load of this point; None where the deployment has no price, or nothing was answered.
    ``prices.js`` computes the same.
    """
    usd_per_hour = point.deployment.usd_per_hour
    output_rate = point.figures.output_token_throughput
    if not usd_per_hour or not output_rate:
        return None
    usd_per_million_s = usd_per_hour / 3600 * 1e6
    input_rate = point.figures.input_token_throughput
    if input_rate is None:
        return TokenPrice(None, None, usd_per_million_s / output_rate)
    of_input = usd_per_million_s / (input_rate + ratio * output_rate)
    return TokenPrice(of_input, ratio * of_input, usd_per_million_s / output_rate)
