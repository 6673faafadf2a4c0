"""Pipelines: steps of agents, tools and people in an order, declared once and frozen."""

from holdfast.pipelines.builders import PipelineBuilder, pipeline
from holdfast.pipelines.contexts import StepContext
from holdfast.pipelines.declarations import Branch, Map, Parallel, Pipeline, Repeat, Stage, Step

__all__ = [
    "Branch",
    "Map",
    "Parallel",
    "Pipeline",
    "PipelineBuilder",
    "Repeat",
    "Stage",
    "Step",
    "StepContext",
    "pipeline",
]
